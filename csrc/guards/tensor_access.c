/* Reading a torch.Tensor's metadata without torch headers and without calling Python.
 *
 * A torch.Tensor object holds a pointer to its c10::TensorImpl. The offsets of the pointer and of the
 * metadata are not part of any stable interface, so they are measured: `tensor_access_calibrate` makes
 * tensors with known metadata, searches their memory for it, and verifies the result on a second set of
 * tensors. If anything does not fit, direct reads stay off and the guards use Python attributes.
 */
#include "weft_frame.h"

#include <dlfcn.h>

/* c10::SizesAndStrides keeps up to 5 dimensions inline; words that are searched for the rest. */
enum { INLINE_RANK = 5, IMPL_WORDS = 24, AUTOGRAD_WORDS = 20 };

static struct {
    bool tried;
    bool ready;
    Py_ssize_t cdata;        /* of the TensorImpl pointer inside the Python object */
    Py_ssize_t sizes;        /* of {rank, inline sizes or pointer, ...} inside the TensorImpl */
    Py_ssize_t dtype_device; /* of {u16 dtype, i8 device type, i8 device index} */
    Py_ssize_t key_set;
    uint64_t lazy_keys;      /* conjugated, negated, zeros without memory */
    Py_ssize_t storage;      /* of the pointer to the c10::StorageImpl */
    Py_ssize_t autograd;     /* of the pointer to the AutogradMeta; NULL: requires no grad */
    Py_ssize_t grad_flag;    /* of the bool inside the AutogradMeta; */
    Py_ssize_t grad_fn;      /* of the pointer: one of them says that gradients are required; */
    const void *plain_meta;  /* an AutogradMeta that starts otherwise is a view's: it asks its base too */
    bool (*requires_grad)(const void *impl);
    PyTypeObject *tensor_type;
} access_;

/* ---- reading ----------------------------------------------------------------------------------- */

bool tensor_access_ready(void)
{
    return access_.ready;
}

PyTypeObject *tensor_base_type(void)
{
    return access_.tensor_type;
}

bool is_tensor(PyObject *value)
{
    return access_.tensor_type != NULL && PyObject_TypeCheck(value, access_.tensor_type);
}

/* Tensors, and tuples of tensors and plain constants. */
static bool is_only_data(PyObject *value, int depth)
{
    if (is_tensor(value))
        return true;
    if (!PyTuple_CheckExact(value))
        return value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
        if (depth == 0 || !is_only_data(PyTuple_GET_ITEM(value, i), depth - 1))
            return false;
    return true;
}

void drop_tensors(PyObject **values, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (values[i] != NULL && is_only_data(values[i], 3))
            Py_CLEAR(values[i]);
}

void *tensor_impl(PyObject *tensor)
{
    return *(void **)((char *)tensor + access_.cdata);
}

const void *tensor_data(PyObject *tensor)
{
    typedef int32_t (*get_data_ptr_fn)(void *tensor, void **result);
    static get_data_ptr_fn get_data_ptr;
    if (get_data_ptr == NULL && access_.ready)
        get_data_ptr = (get_data_ptr_fn)torch_symbol("aoti_torch_get_data_ptr");
    void *data = NULL;
    if (get_data_ptr == NULL || get_data_ptr((char *)tensor + access_.cdata, &data) != 0)
        return NULL;
    return data;
}

const void *tensor_storage(const void *impl)
{
    return *(const void *const *)((const char *)impl + access_.storage);
}

bool tensor_keys(PyObject *tensor, uint64_t *keys)
{
    if (!tensor_access_calibrate() || !is_tensor(tensor))
        return false;
    *keys = *(const uint64_t *)((const char *)tensor_impl(tensor) + access_.key_set);
    return true;
}

static const char *const LAZY_QUESTIONS[] = {"is_conj", "is_neg", "_is_zerotensor"};

int tensor_is_lazy(PyObject *tensor)
{
    if (tensor_access_calibrate() && is_tensor(tensor))
        return (*(const uint64_t *)((const char *)tensor_impl(tensor) + access_.key_set) &
                access_.lazy_keys) != 0;
    int found = 0;
    for (size_t i = 0; i < sizeof(LAZY_QUESTIONS) / sizeof(LAZY_QUESTIONS[0]) && found == 0; i++) {
        PyObject *answer = PyObject_CallMethod(tensor, LAZY_QUESTIONS[i], NULL);
        found = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
    }
    return found;
}

static inline bool requires_grad(const void *impl, const char *autograd)
{
    if (autograd == NULL)
        return false;
    if (autograd[access_.grad_flag] != 0 ||
        *(const void *const *)(autograd + access_.grad_fn) != NULL)
        return true;
    return *(const void *const *)autograd != access_.plain_meta && access_.requires_grad(impl);
}

const char *autograd_meta(const void *impl)
{
    return *(const char *const *)((const char *)impl + access_.autograd);
}

bool tensor_requires_grad(const void *impl)
{
    return requires_grad(impl, autograd_meta(impl));
}

static inline void read_meta(const void *impl, TensorMeta *meta)
{
    const char *base = impl;
    const int64_t *extents = (const int64_t *)(base + access_.sizes);
    meta->key_set = *(const uint64_t *)(base + access_.key_set);
    meta->dtype_device = *(const uint32_t *)(base + access_.dtype_device);
    meta->rank = (Py_ssize_t)extents[0];
    if (meta->rank <= INLINE_RANK) {
        meta->sizes = extents + 1;
        meta->strides = extents + 1 + INLINE_RANK;
    }
    else {
        meta->sizes = *(int64_t *const *)(extents + 1);
        meta->strides = meta->sizes + meta->rank;
    }
}

void tensor_read(const void *impl, TensorMeta *meta)
{
    read_meta(impl, meta);
}

size_t tensor_look_size(Py_ssize_t rank)
{
    return sizeof(TensorLook) + 2 * (size_t)rank * sizeof(int64_t);
}

void tensor_look(PyObject *value, TensorLook *look)
{
    const void *impl = tensor_impl(value);
    TensorMeta meta;
    tensor_read(impl, &meta);
    look->type = Py_TYPE(value);
    look->key_set = meta.key_set;
    look->dtype_device = meta.dtype_device;
    look->rank = (uint16_t)meta.rank;
    look->requires_grad = tensor_requires_grad(impl);
    memcpy(look->extents, meta.sizes, (size_t)meta.rank * sizeof(int64_t));
    memcpy(look->extents + meta.rank, meta.strides, (size_t)meta.rank * sizeof(int64_t));
}

static inline bool extents_differ(const int64_t *sizes, const int64_t *strides,
                                  const int64_t *expected, Py_ssize_t rank)
{
    int64_t differences = 0;
    for (Py_ssize_t i = 0; i < rank; i++)
        differences |= (sizes[i] ^ expected[i]) | (strides[i] ^ expected[rank + i]);
    return differences != 0;
}

static inline bool looks_as(const SeenTensor *tensor, const TensorLook *look)
{
    const char *impl = tensor->impl;
    if (tensor_impl(tensor->value) != impl || Py_TYPE(tensor->value) != look->type ||
        autograd_meta(impl) != tensor->autograd)
        return false;
    TensorMeta meta;
    read_meta(impl, &meta);
    return meta.key_set == look->key_set && meta.dtype_device == look->dtype_device &&
           meta.rank == look->rank &&
           !extents_differ(meta.sizes, meta.strides, look->extents, meta.rank) &&
           requires_grad(impl, tensor->autograd) == look->requires_grad;
}

bool tensors_look_as(const SeenTensor *tensors, Py_ssize_t n, const char *looks)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (!looks_as(&tensors[i], (const TensorLook *)(looks + tensors[i].look)))
            return false;
    return true;
}

void *torch_symbol(const char *mangled)
{
    static const char *const libraries[] = {"libc10.so", "libtorch_cpu.so", "libtorch_python.so"};
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        void *library = dlopen(libraries[i], RTLD_NOW | RTLD_NOLOAD);
        if (library == NULL)
            continue;
        void *found = dlsym(library, mangled);
        dlclose(library); /* loaded by torch, which stays */
        if (found != NULL)
            return found;
    }
    return NULL;
}

/* ---- calibration ------------------------------------------------------------------------------- */

/* Makes the tensors to examine. `search` has fixed roles (see find_offsets); `verify` is a list of
 * (tensor, dtype code, device type code). Codes are c10::ScalarType and c10::DeviceType. */
static const char PROBES[] =
    "import torch\n"
    "with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), \\\n"
    "        torch.inference_mode(False), torch.no_grad():\n"
    "    def make(shape, dtype=torch.float32, device='cpu'):\n"
    "        return torch.empty(shape, dtype=dtype, device=device)\n"
    "    plain = make((3, 5, 7))\n"
    "    long = make((2, 3, 4, 5, 6, 7), torch.int64)\n"
    "    meta = make((3, 5, 7), device='meta')\n"
    "    complex_ = make((3, 5, 7), torch.complex64)\n"
    "    search = (plain, long, meta, complex_, complex_.conj(), torch._neg_view(plain), make((9,)),\n"
    "              torch._efficientzerotensor((9,)))\n"
    "    base = make((4, 6, 8), torch.bfloat16)\n"
    "    verify = [(plain, 6, 0), (long, 4, 0), (meta, 6, 14), (complex_, 9, 0), (base, 15, 0),\n"
    "              (base[1:, ::2], 15, 0), (base.transpose(0, 2), 15, 0), (make(()), 6, 0),\n"
    "              (make((1, 6), torch.bool).expand(3, 6), 11, 0), (make((0, 2)), 6, 0),\n"
    "              (make((2,) * 8, torch.int32), 3, 0), (make((2,) * 5, torch.uint8), 0, 0),\n"
    "              (torch.nn.Parameter(make((2, 2))), 6, 0),\n"
    "              (torch.nn.Parameter(make((2, 2)), requires_grad=False), 6, 0)]\n"
    "    with torch.enable_grad():\n"
    "        result = verify[-2][0] * 2\n"
    "        verify += [(result, 6, 0), (result.detach(), 6, 0), (result[0], 6, 0)]\n"
    "    leaves = [make((2, 2)).requires_grad_() for _ in range(6)]\n"
    "    for t in leaves[3:]:\n"
    "        t.requires_grad_(False)\n"
    "    for t in leaves[::2]:\n"
    "        t.grad = make((2, 2))\n"
    "    verify += [(t, 6, 0) for t in leaves]\n"
    "    verify += [(t[:1], 6, 0) for t in (leaves[0], leaves[3], result)]\n"
    "    autograd = [t._cdata for t in (*leaves, search[6], result)]\n"
    "    grad_fn = result.grad_fn\n"
    "    cdata = [t._cdata for t in search]\n"
    "    storages = [t.untyped_storage()._cdata for t in search]\n"
    "    expected = [(t, code | device << 16 | 0xff << 24, t.requires_grad, tuple(t.shape), t.stride())\n"
    "                for t, code, device in verify]\n"
    "tensor_type = torch.Tensor\n";

enum { PLAIN, LONG, META, COMPLEX, CONJ, NEG, VECTOR, ZERO, N_SEARCH };

static bool find_cdata(PyObject *tensor, uintptr_t cdata)
{
    for (Py_ssize_t at = sizeof(PyObject); at < Py_TYPE(tensor)->tp_basicsize;
         at += (Py_ssize_t)sizeof(void *)) {
        if (*(uintptr_t *)((char *)tensor + at) == cdata) {
            access_.cdata = at;
            return true;
        }
    }
    return false;
}

static bool find_sizes(const int64_t *const *impl)
{
    static const int64_t want[] = {3, 3, 5, 7};
    static const int64_t strides[] = {35, 7, 1};
    for (int at = 1; at + 1 + 2 * INLINE_RANK < IMPL_WORDS; at++) {
        if (memcmp(impl[PLAIN] + at, want, sizeof(want)) == 0 &&
            memcmp(impl[PLAIN] + at + 1 + INLINE_RANK, strides, sizeof(strides)) == 0 &&
            impl[LONG][at] == 6 && impl[VECTOR][at] == 1 && impl[VECTOR][at + 1] == 9) {
            access_.sizes = at * (Py_ssize_t)sizeof(int64_t);
            return true;
        }
    }
    return false;
}

static bool find_dtype_device(const int64_t *const *impl)
{
    static const uint32_t want[] = {[PLAIN] = 0xff000006u, [LONG] = 0xff000004u,
                                    [META] = 0xff0e0006u, [COMPLEX] = 0xff000009u};
    for (Py_ssize_t at = 0; at + 4 <= IMPL_WORDS * 8; at += 2) {
        bool fits = true;
        for (int i = PLAIN; i <= COMPLEX && fits; i++)
            fits = memcmp((const char *)impl[i] + at, &want[i], sizeof(uint32_t)) == 0;
        if (fits) {
            access_.dtype_device = at;
            return true;
        }
    }
    return false;
}

static bool is_single_bit(uint64_t word)
{
    return word != 0 && (word & (word - 1)) == 0;
}

static bool find_key_set(const int64_t *const *impl)
{
    for (int at = 1; at < IMPL_WORDS; at++) {
        uint64_t plain = (uint64_t)impl[PLAIN][at];
        uint64_t conj = (uint64_t)(impl[CONJ][at] ^ impl[COMPLEX][at]);
        uint64_t neg = (uint64_t)impl[NEG][at] ^ plain;
        uint64_t zero = (uint64_t)impl[ZERO][at] & ~plain;
        if (plain == (uint64_t)impl[LONG][at] && plain == (uint64_t)impl[VECTOR][at] &&
            plain == (uint64_t)impl[COMPLEX][at] && plain != (uint64_t)impl[META][at] &&
            is_single_bit(conj) && is_single_bit(neg) && is_single_bit(zero) && conj != neg) {
            access_.key_set = at * (Py_ssize_t)sizeof(int64_t);
            access_.lazy_keys = conj | neg | zero;
            return true;
        }
    }
    return false;
}

static bool find_storage(const int64_t *const *impl, PyObject *storages)
{
    for (int at = 1; at < IMPL_WORDS; at++) {
        bool fits = true;
        for (int i = 0; i < N_SEARCH && fits; i++)
            fits = (void *)impl[i][at] == PyLong_AsVoidPtr(PyList_GET_ITEM(storages, i));
        if (fits) {
            access_.storage = at * (Py_ssize_t)sizeof(int64_t);
            return true;
        }
    }
    return false;
}

/* Tensors for finding the AutogradMeta: WANT leaves require gradients, as many others do not but have
 * an AutogradMeta; UNTOUCHED has none, RESULT has a `grad_fn`. */
enum { WANT = 3, LEAVES = 2 * WANT, UNTOUCHED = LEAVES, RESULT, N_AUTOGRAD };

static bool find_grad_flag(const char *const *meta)
{
    for (Py_ssize_t at = 8; at < AUTOGRAD_WORDS * 8; at++) {
        bool fits = true;
        for (int i = 0; i < LEAVES && fits; i++)
            fits = meta[i][at] == (i < WANT);
        if (fits) {
            access_.grad_flag = at;
            return true;
        }
    }
    return false;
}

/* Whether the Python object of a graph node refers to that node. */
static bool stands_for(PyObject *object, const void *node)
{
    for (Py_ssize_t at = sizeof(PyObject); at < Py_TYPE(object)->tp_basicsize; at += 8)
        if (*(const void *const *)((const char *)object + at) == node)
            return true;
    return false;
}

static bool find_grad_fn(const char *const *meta, PyObject *grad_fn)
{
    for (Py_ssize_t at = 8; at < AUTOGRAD_WORDS * 8; at += 8) {
        const void *node = *(const void *const *)(meta[RESULT] + at);
        bool fits = node != NULL && stands_for(grad_fn, node);
        for (int i = 0; i < LEAVES && fits; i++)
            fits = *(const void *const *)(meta[i] + at) == NULL;
        if (fits) {
            access_.grad_fn = at;
            return true;
        }
    }
    return false;
}

static bool are_different_objects(const char *const *meta)
{
    for (int i = 0; i < N_AUTOGRAD; i++) {
        if ((meta[i] == NULL) != (i == UNTOUCHED) || (uintptr_t)meta[i] % 8 != 0 ||
            (i != UNTOUCHED && (uintptr_t)meta[i] < 4096))
            return false;
        for (int j = 0; j < i; j++)
            if (meta[i] == meta[j])
                return false;
    }
    return true;
}

static bool find_autograd(PyObject *addresses, PyObject *grad_fn)
{
    for (Py_ssize_t at = 16; at < IMPL_WORDS * 8; at += 8) {
        const char *meta[N_AUTOGRAD];
        for (int i = 0; i < N_AUTOGRAD; i++) {
            const char *impl = PyLong_AsVoidPtr(PyList_GET_ITEM(addresses, i));
            meta[i] = *(const char *const *)(impl + at);
        }
        if (are_different_objects(meta)) {
            access_.autograd = at;
            access_.plain_meta = *(const void *const *)meta[0];
            return find_grad_flag(meta) && find_grad_fn(meta, grad_fn);
        }
    }
    return false;
}

static bool find_offsets(PyObject *probes)
{
    PyObject *search = PyDict_GetItemString(probes, "search");
    PyObject *cdata = PyDict_GetItemString(probes, "cdata");
    const int64_t *impl[N_SEARCH];
    PyObject *storages = PyDict_GetItemString(probes, "storages");
    if (search == NULL || cdata == NULL || storages == NULL)
        return false;
    for (Py_ssize_t i = 0; i < N_SEARCH; i++) {
        uintptr_t address = (uintptr_t)PyLong_AsVoidPtr(PyList_GET_ITEM(cdata, i));
        if (address == 0 || (i == 0 && !find_cdata(PyTuple_GET_ITEM(search, i), address)))
            return false;
        impl[i] = tensor_impl(PyTuple_GET_ITEM(search, i));
        if ((uintptr_t)impl[i] != address)
            return false;
    }
    *(void **)&access_.requires_grad = torch_symbol("_ZNK3c1010TensorImpl13requires_gradEv");
    return access_.requires_grad != NULL && find_sizes(impl) && find_dtype_device(impl) && find_key_set(impl) &&
           find_storage(impl, storages) &&
           find_autograd(PyDict_GetItemString(probes, "autograd"),
                         PyDict_GetItemString(probes, "grad_fn"));
}

static bool extents_equal(PyObject *tuple, const int64_t *values, Py_ssize_t rank)
{
    if (PyTuple_GET_SIZE(tuple) != rank)
        return false;
    for (Py_ssize_t i = 0; i < rank; i++)
        if (PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)) != values[i])
            return false;
    return true;
}

static bool verify_offsets(PyObject *probes)
{
    PyObject *expected = PyDict_GetItemString(probes, "expected");
    for (Py_ssize_t i = 0; expected != NULL && i < PyList_GET_SIZE(expected); i++) {
        PyObject *row = PyList_GET_ITEM(expected, i);
        const void *impl = tensor_impl(PyTuple_GET_ITEM(row, 0));
        TensorMeta meta;
        tensor_read(impl, &meta);
        if (meta.dtype_device != PyLong_AsUnsignedLong(PyTuple_GET_ITEM(row, 1)) ||
            tensor_requires_grad(impl) != (PyTuple_GET_ITEM(row, 2) == Py_True) ||
            !extents_equal(PyTuple_GET_ITEM(row, 3), meta.sizes, meta.rank) ||
            !extents_equal(PyTuple_GET_ITEM(row, 4), meta.strides, meta.rank))
            return false;
    }
    return expected != NULL;
}

static PyObject *make_probes(void)
{
    PyObject *probes = PyDict_New();
    if (probes == NULL)
        return NULL;
    PyDict_SetItemString(probes, "__builtins__", PyEval_GetBuiltins());
    PyObject *done = PyRun_String(PROBES, Py_file_input, probes, probes);
    if (done == NULL)
        Py_CLEAR(probes);
    Py_XDECREF(done);
    return probes;
}

bool tensor_access_calibrate(void)
{
    if (access_.tried)
        return access_.ready;
    access_.tried = true;
    PyObject *old_type, *old_value, *old_traceback;
    PyErr_Fetch(&old_type, &old_value, &old_traceback);
    PyObject *probes = make_probes();
    if (probes != NULL) {
        PyObject *type = PyDict_GetItemString(probes, "tensor_type");
        access_.tensor_type = (PyTypeObject *)Py_XNewRef(type);
        access_.ready = find_offsets(probes) && verify_offsets(probes);
        PyDict_Clear(probes); /* a function inside refers to it */
        Py_DECREF(probes);
    }
    PyErr_Clear();
    PyErr_Restore(old_type, old_value, old_traceback);
    return access_.ready;
}

PyObject *tensor_access_describe(void)
{
    tensor_access_calibrate();
    return Py_BuildValue("{s:N,s:n,s:n,s:n,s:n,s:n}", "direct", PyBool_FromLong(access_.ready), "cdata",
                         access_.cdata, "sizes", access_.sizes, "dtype_device", access_.dtype_device,
                         "key_set", access_.key_set,
                         "storage", access_.storage);
}
