/* Reading a torch.Tensor's metadata without torch headers and without calling Python.
 *
 * A torch.Tensor object holds a pointer to its c10::TensorImpl. Where the pointer and the metadata lie
 * is not part of any stable interface, so it is measured: `tensor_access_calibrate` makes tensors with
 * known metadata, looks for it in their memory, and verifies what it found on a second set of tensors.
 * If anything does not fit, direct reading stays off and the guards use Python attributes.
 */
#include "weft_frame.h"

#include <dlfcn.h>

enum { INLINE_RANK = 5, IMPL_WORDS = 24 }; /* c10::SizesAndStrides keeps up to 5 dimensions inline */

static struct {
    bool tried;
    bool ready;
    Py_ssize_t cdata;        /* of the TensorImpl pointer inside the Python object */
    Py_ssize_t sizes;        /* of {rank, inline sizes or pointer, ...} inside the TensorImpl */
    Py_ssize_t dtype_device; /* of {u16 dtype, i8 device type, i8 device index} */
    Py_ssize_t key_set;
    Py_ssize_t storage;      /* of the pointer to the c10::StorageImpl */
    Py_ssize_t autograd;     /* of the pointer to the AutogradMeta; NULL: requires no grad */
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

bool tensor_requires_grad(const void *impl)
{
    const char *autograd = *(const char *const *)((const char *)impl + access_.autograd);
    if (autograd == NULL)
        return false;
    return access_.requires_grad(impl);
}

void tensor_read(const void *impl, TensorMeta *meta)
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

void tensor_snapshot(PyObject *value, TensorSnapshot *snapshot, int64_t *extents)
{
    const void *impl = tensor_impl(value);
    TensorMeta meta;
    tensor_read(impl, &meta);
    *snapshot = (TensorSnapshot){
        .value = value,
        .type = Py_TYPE(value),
        .impl = impl,
        .key_set = meta.key_set,
        .dtype_device = meta.dtype_device,
        .rank = (uint16_t)meta.rank,
        .requires_grad = tensor_requires_grad(impl),
    };
    if (extents == NULL)
        return;
    memcpy(extents, meta.sizes, (size_t)meta.rank * sizeof(int64_t));
    memcpy(extents + meta.rank, meta.strides, (size_t)meta.rank * sizeof(int64_t));
}

static bool extents_equal_to(const int64_t *a, const int64_t *b, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (a[i] != b[i])
            return false;
    return true;
}

static inline bool looks_as(const TensorSnapshot *snapshot, const int64_t *extents)
{
    const void *impl = tensor_impl(snapshot->value);
    TensorMeta meta;
    if (impl != snapshot->impl || Py_TYPE(snapshot->value) != snapshot->type)
        return false;
    tensor_read(impl, &meta);
    return meta.key_set == snapshot->key_set && meta.dtype_device == snapshot->dtype_device &&
           meta.rank == snapshot->rank && extents_equal_to(meta.sizes, extents, meta.rank) &&
           extents_equal_to(meta.strides, extents + meta.rank, meta.rank) &&
           tensor_requires_grad(impl) == snapshot->requires_grad;
}

/* Parameters lie all over the memory: ask for the cache lines before they are needed. */
static inline void prefetch(const TensorSnapshot *snapshot)
{
    const char *impl = snapshot->impl;
    __builtin_prefetch(snapshot->value);
    __builtin_prefetch(impl + access_.autograd);
    __builtin_prefetch(impl + access_.sizes + 8);
    __builtin_prefetch(impl + access_.key_set);
}

bool tensors_look_as(const TensorSnapshot *snapshots, Py_ssize_t n, const int64_t *extents)
{
    enum { AHEAD = 6 };
    for (Py_ssize_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            prefetch(&snapshots[i + AHEAD]);
        if (!looks_as(&snapshots[i], extents))
            return false;
        extents += 2 * snapshots[i].rank;
    }
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

/* Makes the tensors to look at. `search` has fixed roles (see find_offsets); `verify` is a list of
 * (tensor, dtype code, device type code). Codes are c10::ScalarType and c10::DeviceType. */
static const char PROBES[] =
    "import torch\n"
    "with torch._C.DisableTorchFunction(), torch.no_grad():\n"
    "    def make(shape, dtype=torch.float32, device='cpu'):\n"
    "        return torch.empty(shape, dtype=dtype, device=device)\n"
    "    plain = make((3, 5, 7))\n"
    "    long = make((2, 3, 4, 5, 6, 7), torch.int64)\n"
    "    meta = make((3, 5, 7), device='meta')\n"
    "    complex_ = make((3, 5, 7), torch.complex64)\n"
    "    search = (plain, long, meta, complex_, complex_.conj(), torch._neg_view(plain), make((9,)))\n"
    "    base = make((4, 6, 8), torch.bfloat16)\n"
    "    verify = [(plain, 6, 0), (long, 4, 0), (meta, 6, 14), (complex_, 9, 0), (base, 15, 0),\n"
    "              (base[1:, ::2], 15, 0), (base.transpose(0, 2), 15, 0), (make(()), 6, 0),\n"
    "              (make((1, 6), torch.bool).expand(3, 6), 11, 0), (make((0, 2)), 6, 0),\n"
    "              (make((2,) * 8, torch.int32), 3, 0), (make((2,) * 5, torch.uint8), 0, 0),\n"
    "              (torch.nn.Parameter(make((2, 2))), 6, 0),\n"
    "              (torch.nn.Parameter(make((2, 2)), requires_grad=False), 6, 0)]\n"
    "    with torch.enable_grad():\n"
    "        verify.append((verify[-2][0] * 2, 6, 0))\n"
    "    leaves = tuple(make((2, 2)).requires_grad_(grad) for grad in (True, True, False, False))\n"
    "    for t in leaves[1:3]:\n"
    "        t.requires_grad_(not t.requires_grad).requires_grad_(not t.requires_grad)\n"
    "        t.grad = make((2, 2))\n"
    "leaf_cdata = [t._cdata for t in leaves]\n"
    "cdata = [t._cdata for t in search]\n"
    "storages = [t.untyped_storage()._cdata for t in search]\n"
    "expected = [(t, code | device << 16 | 0xff << 24, t.requires_grad, tuple(t.shape), t.stride())\n"
    "            for t, code, device in verify]\n"
    "tensor_type = torch.Tensor\n";

enum { PLAIN, LONG, META, COMPLEX, CONJ, NEG, VECTOR, N_SEARCH };

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
        if (plain == (uint64_t)impl[LONG][at] && plain == (uint64_t)impl[VECTOR][at] &&
            plain == (uint64_t)impl[COMPLEX][at] && plain != (uint64_t)impl[META][at] &&
            is_single_bit(conj) && is_single_bit(neg) && conj != neg) {
            access_.key_set = at * (Py_ssize_t)sizeof(int64_t);
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

/* leaf 0, 1: require grad; 2: does not, but has an AutogradMeta; 3: has none. */
static bool find_autograd(PyObject *addresses)
{
    const char *leaf[4];
    for (int i = 0; i < 4; i++)
        leaf[i] = PyLong_AsVoidPtr(PyList_GET_ITEM(addresses, i));
    for (Py_ssize_t at = 16; at < IMPL_WORDS * 8; at += 8) {
        const char *meta[4];
        for (int i = 0; i < 4; i++)
            meta[i] = *(const char *const *)(leaf[i] + at);
        if (meta[3] != NULL || meta[0] == NULL || meta[1] == NULL || meta[2] == NULL ||
            (uintptr_t)meta[0] < 4096 || meta[0] == meta[1] || meta[1] == meta[2] ||
            (uintptr_t)meta[0] % 8 || (uintptr_t)meta[2] % 8)
            continue;
        access_.autograd = at;
        return true;
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
    return find_sizes(impl) && find_dtype_device(impl) && find_key_set(impl) &&
           find_storage(impl, storages) &&
           find_autograd(PyDict_GetItemString(probes, "leaf_cdata"));
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
        *(void **)&access_.requires_grad = torch_symbol("_ZNK3c1010TensorImpl13requires_gradEv");
        access_.ready = access_.requires_grad != NULL && find_offsets(probes) && verify_offsets(probes);
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
