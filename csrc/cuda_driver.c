/* weft._cuda: loads GPU binaries and launches kernels through the CUDA driver.
 *
 * Place in the pipeline: runtime/cuda_kernel.py wraps it; generated call sequences call `Kernel` objects.
 * The driver (libcuda.so.1) is opened at run time: this file builds without CUDA headers and loads on
 * machines without a GPU. The addresses of torch's C functions are passed to configure().
 *
 * A Kernel is called with its buffers (tensors) first, then its sizes (ints). Nothing is checked here:
 * the caller guarantees dtypes, devices and strides. The launch goes to torch's current stream.
 * A Sized is called in the same way and chooses a Kernel by the sizes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

/* ---- the few driver functions used, as documented in the CUDA driver API ---- */

typedef int (*module_load_data_fn)(void **module, const void *image);
typedef int (*module_get_function_fn)(void **function, void *module, const char *name);
typedef int (*func_set_attribute_fn)(void *function, int attribute, int value);
typedef int (*launch_kernel_fn)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                unsigned by, unsigned bz, unsigned shared, void *stream,
                                void **params, void **extra);
typedef int (*get_error_string_fn)(int code, const char **text);
typedef int (*context_get_fn)(void **context);
typedef int (*context_set_fn)(void *context);
typedef int (*device_get_fn)(int *device, int ordinal);
typedef int (*primary_retain_fn)(void **context, int device);

enum { FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, DEFAULT_SHARED_LIMIT = 48 * 1024 };

static struct {
    module_load_data_fn module_load_data;
    module_get_function_fn module_get_function;
    func_set_attribute_fn func_set_attribute;
    launch_kernel_fn launch_kernel;
    get_error_string_fn get_error_string;
    context_get_fn context_get_current;
    context_set_fn context_set_current;
    device_get_fn device_get;
    primary_retain_fn primary_context_retain;
} driver;

enum { MAX_DEVICES = 64 };
static void *primary_contexts[MAX_DEVICES]; /* retained on first use, never released */

/* ---- torch's C functions (addresses from Python) ---- */

typedef int32_t (*get_data_ptr_fn)(void *tensor, void **result);
typedef int32_t (*get_stream_fn)(int32_t device, void **result);

static get_data_ptr_fn torch_get_data_ptr;
static get_stream_fn torch_get_current_stream;
static Py_ssize_t tensor_offset; /* of the at::Tensor inside a torch.Tensor object */

static PyObject *driver_error(const char *what, int code)
{
    const char *text = NULL;
    if (driver.get_error_string != NULL)
        driver.get_error_string(code, &text);
    PyErr_Format(PyExc_RuntimeError, "CUDA driver: %s failed: %s (%d)", what,
                 text != NULL ? text : "unknown error", code);
    return NULL;
}

static int load_driver(void)
{
    if (driver.launch_kernel != NULL)
        return 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "CUDA driver: libcuda.so.1 cannot be loaded");
        return -1;
    }
    driver.module_load_data = (module_load_data_fn)dlsym(library, "cuModuleLoadData");
    driver.module_get_function = (module_get_function_fn)dlsym(library, "cuModuleGetFunction");
    driver.func_set_attribute = (func_set_attribute_fn)dlsym(library, "cuFuncSetAttribute");
    driver.get_error_string = (get_error_string_fn)dlsym(library, "cuGetErrorString");
    driver.launch_kernel = (launch_kernel_fn)dlsym(library, "cuLaunchKernel");
    driver.context_get_current = (context_get_fn)dlsym(library, "cuCtxGetCurrent");
    driver.context_set_current = (context_set_fn)dlsym(library, "cuCtxSetCurrent");
    driver.device_get = (device_get_fn)dlsym(library, "cuDeviceGet");
    driver.primary_context_retain =
        (primary_retain_fn)dlsym(library, "cuDevicePrimaryCtxRetain");
    if (driver.module_load_data == NULL || driver.module_get_function == NULL ||
        driver.func_set_attribute == NULL || driver.launch_kernel == NULL ||
        driver.context_get_current == NULL || driver.context_set_current == NULL ||
        driver.device_get == NULL || driver.primary_context_retain == NULL) {
        driver.launch_kernel = NULL;
        PyErr_SetString(PyExc_RuntimeError, "CUDA driver: libcuda.so.1 lacks a function");
        return -1;
    }
    return 0;
}

/* Make the device's primary context (torch's) current in this thread. The thread may have none (autograd's
 * threads before torch's first call in them) or another device's. `before` receives the previous one. */
static int enter_device(int device, void **before)
{
    int code = driver.context_get_current(before);
    if (code == 0 && primary_contexts[device] == NULL) {
        int handle = 0;
        code = driver.device_get(&handle, device);
        if (code == 0)
            code = driver.primary_context_retain(&primary_contexts[device], handle);
    }
    if (code == 0 && *before != primary_contexts[device])
        code = driver.context_set_current(primary_contexts[device]);
    if (code != 0) {
        driver_error("making a device's context current", code);
        return -1;
    }
    return 0;
}

/* A thread without a context uses device 0, in torch too: then device 0's context may stay. */
static void leave_device(int device, void *before)
{
    if (before != primary_contexts[device] && (before != NULL || device != 0))
        driver.context_set_current(before);
}

PyDoc_STRVAR(configure_doc,
             "configure(tensor_offset, get_data_ptr, get_current_stream)\n\n"
             "Byte offset of the at::Tensor inside a torch.Tensor object, and the addresses of\n"
             "aoti_torch_get_data_ptr and aoti_torch_get_current_cuda_stream.");

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long data_ptr, stream;
    if (!PyArg_ParseTuple(args, "nKK", &tensor_offset, &data_ptr, &stream))
        return NULL;
    torch_get_data_ptr = (get_data_ptr_fn)(uintptr_t)data_ptr;
    torch_get_current_stream = (get_stream_fn)(uintptr_t)stream;
    Py_RETURN_NONE;
}

/* ---- Kernel ---- */

enum { MAX_PARAMETERS = 512, TRITON_SCRATCH_PARAMETERS = 2 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    void *function;
    int device;
    unsigned grid, block, shared;
    int n_buffers, n_sizes;
    int n_divisors;
    PyObject *grid_of;   /* callable(*sizes) -> (programs, *divisors), or NULL: `grid` is fixed */
    uint64_t *seen;      /* the sizes, then the reciprocals of the divisors, of the last launch */
    PyObject *unaligned; /* callable(*args) taking over when a buffer is not 16-byte aligned, or NULL */
} Kernel;

static int launch(Kernel *self, void **params, unsigned grid)
{
    void *stream = NULL;
    if (grid == 0)
        return 0;
    if (torch_get_current_stream(self->device, &stream) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "torch gave no current CUDA stream");
        return -1;
    }
    void *before;
    if (enter_device(self->device, &before) < 0)
        return -1;
    int code = driver.launch_kernel(self->function, grid, 1, 1, self->block, 1, 1, self->shared,
                                    stream, params, NULL);
    leave_device(self->device, before);
    if (code != 0) {
        driver_error("cuLaunchKernel", code);
        return -1;
    }
    return 0;
}

/* A divisor as a multiplier (low 32 bits) and a shift (high 32 bits): for 0 <= n < 2**31,
   n / divisor == ((2 * n * multiplier) >> 32) >> shift. With 2**(shift - 1) < divisor <= 2**shift
   the multiplier, 2**(31 + shift) / divisor rounded up, fits in 32 bits, and its rounding is too
   small to reach the next quotient (Granlund and Montgomery, 1994). */
static uint64_t reciprocal_of(uint64_t divisor)
{
    uint64_t shift = 0;
    while ((UINT64_C(1) << shift) < divisor)
        shift++;
    uint64_t multiplier = ((UINT64_C(1) << (31 + shift)) + divisor - 1) / divisor;
    return multiplier | shift << 32;
}

/* `found`: (programs, *divisors). Stores the reciprocals in `parts`; the programs, or -1. */
static int64_t read_grid(PyObject *found, int n_divisors, uint64_t *parts)
{
    if (!PyTuple_Check(found) || PyTuple_GET_SIZE(found) != n_divisors + 1) {
        PyErr_SetString(PyExc_TypeError, "grid_of gives a tuple: programs, then the divisors");
        return -1;
    }
    for (int i = 0; i < n_divisors; i++) {
        int64_t divisor = PyLong_AsLongLong(PyTuple_GET_ITEM(found, i + 1));
        if (divisor == -1 && PyErr_Occurred())
            return -1;
        uint64_t both = reciprocal_of(divisor < 1 || divisor > INT32_MAX ? 1 : (uint64_t)divisor);
        parts[2 * i] = both & UINT32_MAX;
        parts[2 * i + 1] = both >> 32;
    }
    return PyLong_AsLongLong(PyTuple_GET_ITEM(found, 0));
}

/* The grid for these sizes, recomputed only if they change. `values`: the sizes as integers; the
   reciprocals of the divisors are written behind them. */
static int64_t grid_for(Kernel *self, PyObject *const *sizes, uint64_t *values)
{
    if (self->grid_of == NULL)
        return self->grid;
    const size_t n_sizes = (size_t)self->n_sizes, n_parts = 2 * (size_t)self->n_divisors;
    if (self->seen != NULL && memcmp(self->seen, values, sizeof(uint64_t) * n_sizes) == 0) {
        memcpy(values + n_sizes, self->seen + n_sizes, sizeof(uint64_t) * n_parts);
        return self->grid;
    }
    PyObject *result = PyObject_Vectorcall(self->grid_of, sizes, n_sizes, NULL);
    if (result == NULL)
        return -1;
    int64_t grid = read_grid(result, self->n_divisors, values + n_sizes);
    Py_DECREF(result);
    if (grid >= 0 && self->seen == NULL)
        self->seen = PyMem_Malloc(sizeof(uint64_t) * (n_sizes + n_parts));
    if (grid >= 0 && self->seen != NULL) {
        memcpy(self->seen, values, sizeof(uint64_t) * (n_sizes + n_parts));
        self->grid = (unsigned)grid;
    }
    return grid;
}

static PyObject *kernel_call(PyObject *callable, PyObject *const *args, size_t nargsf,
                             PyObject *Py_UNUSED(names))
{
    Kernel *self = (Kernel *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    uint64_t values[MAX_PARAMETERS + TRITON_SCRATCH_PARAMETERS];
    void *params[MAX_PARAMETERS + TRITON_SCRATCH_PARAMETERS];
    int total = self->n_buffers + self->n_sizes;

    if (given != total)
        return PyErr_Format(PyExc_TypeError, "kernel takes %d arguments, %zd given", total, given);
    for (int i = 0; i < self->n_buffers; i++) {
        void *data = NULL;
        if (torch_get_data_ptr((char *)args[i] + tensor_offset, &data) != 0)
            return PyErr_Format(PyExc_RuntimeError, "buffer %d has no data pointer", i);
        if (((uintptr_t)data & 15) != 0 && self->unaligned != NULL)
            return PyObject_Vectorcall(self->unaligned, args, (size_t)given, NULL);
        values[i] = (uint64_t)(uintptr_t)data;
    }
    for (int i = self->n_buffers; i < total; i++) {
        values[i] = (uint64_t)PyLong_AsLongLong(args[i]);
        if (PyErr_Occurred())
            return NULL;
    }
    int64_t grid = grid_for(self, args + self->n_buffers, values + self->n_buffers);
    total += 2 * self->n_divisors;
    for (int i = total; i < total + TRITON_SCRATCH_PARAMETERS; i++)
        values[i] = 0;
    for (int i = 0; i < total + TRITON_SCRATCH_PARAMETERS; i++)
        params[i] = &values[i];
    if (grid < 0 || launch(self, params, (unsigned)grid) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int load_function(Kernel *self, const char *image, const char *name)
{
    void *loaded = NULL, *before;
    if (load_driver() < 0 || enter_device(self->device, &before) < 0)
        return -1;
    int code = driver.module_load_data(&loaded, image);
    if (code == 0)
        code = driver.module_get_function(&self->function, loaded, name);
    if (code == 0 && self->shared > DEFAULT_SHARED_LIMIT)
        code = driver.func_set_attribute(
            self->function, FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)self->shared);
    leave_device(self->device, before);
    if (code != 0) {
        driver_error("loading a kernel", code);
        return -1;
    }
    return 0;
}

static int kernel_init(Kernel *self, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"image",     "name",    "device", "grid",      "block", "shared",
                               "n_buffers", "n_sizes", "n_divisors", "grid_of", "unaligned",
                               NULL};
    const char *image, *name;
    Py_ssize_t image_size;
    PyObject *grid_of = Py_None, *unaligned = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#siIIIiii|OO", keywords, &image, &image_size,
                                     &name, &self->device, &self->grid, &self->block,
                                     &self->shared, &self->n_buffers, &self->n_sizes,
                                     &self->n_divisors, &grid_of, &unaligned))
        return -1;
    if (torch_get_data_ptr == NULL || torch_get_current_stream == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "weft._cuda.configure() was not called");
        return -1;
    }
    if (self->device < 0 || self->device >= MAX_DEVICES) {
        PyErr_Format(PyExc_ValueError, "device %d: there are at most %d", self->device, MAX_DEVICES);
        return -1;
    }
    if (self->n_buffers + self->n_sizes + 2 * self->n_divisors > MAX_PARAMETERS) {
        PyErr_Format(PyExc_ValueError, "a kernel takes at most %d parameters", MAX_PARAMETERS);
        return -1;
    }
    self->vectorcall = kernel_call;
    if (grid_of != Py_None)
        Py_XSETREF(self->grid_of, Py_NewRef(grid_of));
    if (unaligned != Py_None)
        Py_XSETREF(self->unaligned, Py_NewRef(unaligned));
    return load_function(self, image, name);
}

static int kernel_traverse(Kernel *self, visitproc visit, void *arg)
{
    Py_VISIT(self->grid_of);
    Py_VISIT(self->unaligned);
    return 0;
}

static int kernel_clear(Kernel *self)
{
    Py_CLEAR(self->grid_of);
    Py_CLEAR(self->unaligned);
    return 0;
}

static void kernel_dealloc(Kernel *self)
{
    PyObject_GC_UnTrack(self);
    kernel_clear(self);
    PyMem_Free(self->seen);
    /* The module stays loaded: launches may be in flight, and kernels live as long as their cache. */
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyDoc_STRVAR(kernel_doc,
             "Kernel(image, name, device, grid, block, shared, n_buffers, n_sizes, n_divisors, "
             "grid_of=None, unaligned=None)\n\n"
             "A GPU kernel from a binary image (cubin). Call it with its buffers, then its sizes.\n"
             "grid: programs; grid_of: callable(*sizes) -> (programs, *divisors); block: threads a\n"
             "program; shared: bytes of dynamic shared memory; unaligned: called instead when a\n"
             "buffer is not 16-byte aligned. The kernel's parameters are the buffers, the sizes, and\n"
             "the `reciprocal` of each divisor.");

static PyMemberDef kernel_members[] = {
    {"unaligned", T_OBJECT, offsetof(Kernel, unaligned), READONLY,
     "What takes over when a buffer is not 16-byte aligned, or None."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weft._cuda.Kernel",
    .tp_doc = kernel_doc,
    .tp_basicsize = sizeof(Kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Kernel, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)kernel_init,
    .tp_members = kernel_members,
    .tp_traverse = (traverseproc)kernel_traverse,
    .tp_clear = (inquiry)kernel_clear,
    .tp_dealloc = (destructor)kernel_dealloc,
};

/* ---- Sized ---- */

enum { MAX_KEYS = 128 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *find;   /* callable(sizes) -> (what launches for these sizes, is that final?) */
    PyObject *launch; /* the final one for `seen`, or NULL */
    int n_keys;
    uint16_t keys[MAX_KEYS]; /* positions of the sizes among the arguments */
    int64_t seen[MAX_KEYS];
} Sized;

/* A new reference to the launch callable for these sizes. */
static PyObject *find_launch(Sized *self, PyObject *const *args, const int64_t *values)
{
    PyObject *sizes = PyTuple_New(self->n_keys), *launch;
    int is_final;
    if (sizes == NULL)
        return NULL;
    for (int i = 0; i < self->n_keys; i++)
        PyTuple_SET_ITEM(sizes, i, Py_NewRef(args[self->keys[i]]));
    PyObject *found = PyObject_CallOneArg(self->find, sizes);
    Py_DECREF(sizes);
    if (found == NULL)
        return NULL;
    if (PyArg_ParseTuple(found, "Op", &launch, &is_final)) {
        Py_INCREF(launch);
        if (is_final) {
            memcpy(self->seen, values, sizeof(int64_t) * (size_t)self->n_keys);
            Py_XSETREF(self->launch, Py_NewRef(launch));
        }
    } else {
        launch = NULL;
    }
    Py_DECREF(found);
    return launch;
}

static PyObject *sized_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *Py_UNUSED(names))
{
    Sized *self = (Sized *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    int64_t values[MAX_KEYS];
    if (self->n_keys > 0 && given <= self->keys[self->n_keys - 1])
        return PyErr_Format(PyExc_TypeError, "a kernel of sizes was given %zd arguments", given);
    for (int i = 0; i < self->n_keys; i++) {
        values[i] = PyLong_AsLongLong(args[self->keys[i]]);
        if (values[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    PyObject *launch;
    if (self->launch != NULL && memcmp(values, self->seen, sizeof(int64_t) * (size_t)self->n_keys) == 0)
        launch = Py_NewRef(self->launch);
    else
        launch = find_launch(self, args, values);
    if (launch == NULL)
        return NULL;
    PyObject *result = PyObject_Vectorcall(launch, args, (size_t)given, NULL);
    Py_DECREF(launch);
    return result;
}

static int sized_init(Sized *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *find, *keys;
    if (!PyArg_ParseTuple(args, "OO!", &find, &PyTuple_Type, &keys))
        return -1;
    if (PyTuple_GET_SIZE(keys) > MAX_KEYS) {
        PyErr_Format(PyExc_ValueError, "a kernel depends on at most %d sizes", MAX_KEYS);
        return -1;
    }
    self->vectorcall = sized_call;
    self->n_keys = (int)PyTuple_GET_SIZE(keys);
    for (int i = 0; i < self->n_keys; i++) {
        long key = PyLong_AsLong(PyTuple_GET_ITEM(keys, i));
        if (key < 0 || (i > 0 && key <= self->keys[i - 1])) {
            PyErr_SetString(PyExc_ValueError, "keys are ascending positions of arguments");
            return -1;
        }
        self->keys[i] = (uint16_t)key;
    }
    Py_XSETREF(self->find, Py_NewRef(find));
    return 0;
}

static int sized_traverse(Sized *self, visitproc visit, void *arg)
{
    Py_VISIT(self->find);
    Py_VISIT(self->launch);
    return 0;
}

static int sized_clear(Sized *self)
{
    Py_CLEAR(self->find);
    Py_CLEAR(self->launch);
    return 0;
}

static void sized_dealloc(Sized *self)
{
    PyObject_GC_UnTrack(self);
    sized_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyDoc_STRVAR(sized_doc,
             "Sized(find, keys)\n\n"
             "A kernel whose launch depends on the arguments at positions `keys` (ascending).\n"
             "find(sizes) gives it, and whether it is final: that one is kept while they stay.");

static PyTypeObject SizedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weft._cuda.Sized",
    .tp_doc = sized_doc,
    .tp_basicsize = sizeof(Sized),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Sized, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)sized_init,
    .tp_traverse = (traverseproc)sized_traverse,
    .tp_clear = (inquiry)sized_clear,
    .tp_dealloc = (destructor)sized_dealloc,
};

PyDoc_STRVAR(reciprocal_doc,
             "reciprocal(divisor) -> (multiplier, shift)\n\n"
             "For 0 <= n < 2**31, n // divisor is (2 * n * multiplier) >> 32 >> shift.\n"
             "divisor: from 1 to 2**31 - 1. The multiplier has 32 bits.");

static PyObject *reciprocal(PyObject *Py_UNUSED(module), PyObject *argument)
{
    int64_t divisor = PyLong_AsLongLong(argument);
    if (divisor == -1 && PyErr_Occurred())
        return NULL;
    if (divisor < 1 || divisor > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "a divisor is from 1 to 2**31 - 1, not %R", argument);
    uint64_t both = reciprocal_of((uint64_t)divisor);
    return Py_BuildValue("KK", both & UINT32_MAX, both >> 32);
}

static PyMethodDef methods[] = {
    {"reciprocal", reciprocal, METH_O, reciprocal_doc},
    {"configure", configure, METH_VARARGS, configure_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "weft._cuda",
    .m_doc = "CUDA driver access: load binaries, launch kernels.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__cuda(void)
{
    if (PyType_Ready(&KernelType) < 0 || PyType_Ready(&SizedType) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyModule_AddObjectRef(module, "Kernel", (PyObject *)&KernelType) < 0 ||
        PyModule_AddObjectRef(module, "Sized", (PyObject *)&SizedType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
