/* weft._cpu: calls compiled C++ kernels with the least overhead.
 *
 * Place in the pipeline: runtime/launcher.py wraps it; generated call sequences call `Kernel` objects.
 * A Kernel is called with its buffers (tensors) first, then its sizes (ints); it reads the data pointers and
 * calls  int entry(void *const *buffers, const int64_t *sizes)  without the GIL. Nothing is checked here: the
 * caller guarantees dtypes, devices and strides. A result other than 0 means an index out of range.
 * No torch headers: the address of aoti_torch_get_data_ptr and the offset of the at::Tensor inside a
 * torch.Tensor object are passed to configure().
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

typedef int32_t (*get_data_ptr_fn)(void *tensor, void **result);
typedef int (*entry_fn)(void *const *buffers, const int64_t *sizes);

static get_data_ptr_fn torch_get_data_ptr;
static Py_ssize_t tensor_offset; /* of the at::Tensor inside a torch.Tensor object */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    entry_fn entry;
    Py_ssize_t n_buffers, n_sizes;
    PyObject *name;
    PyObject *keep; /* what keeps the code loaded */
} Kernel;

enum { MAX_ON_STACK = 64 };

static int read_arguments(Kernel *self, PyObject *const *args, void **buffers, int64_t *sizes)
{
    for (Py_ssize_t i = 0; i < self->n_buffers; i++) {
        if (torch_get_data_ptr((char *)args[i] + tensor_offset, &buffers[i]) != 0) {
            PyErr_Format(PyExc_RuntimeError, "%U: argument %zd has no data", self->name, i);
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < self->n_sizes; i++) {
        sizes[i] = PyLong_AsLongLong(args[self->n_buffers + i]);
        if (sizes[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static PyObject *kernel_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Kernel *self = (Kernel *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf), wanted = self->n_buffers + self->n_sizes;
    void *stack[MAX_ON_STACK], **words = stack;
    if (n != wanted || (names != NULL && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_Format(PyExc_TypeError, "%U takes %zd arguments, got %zd", self->name, wanted, n);
        return NULL;
    }
    if (n > MAX_ON_STACK && (words = PyMem_Malloc((size_t)n * sizeof(void *))) == NULL)
        return PyErr_NoMemory();
    int64_t *sizes = (int64_t *)(words + self->n_buffers);
    int status = read_arguments(self, args, words, sizes);
    if (status == 0) {
        Py_BEGIN_ALLOW_THREADS
        status = self->entry(words, sizes);
        Py_END_ALLOW_THREADS
        if (status == 2)
            PyErr_SetString(PyExc_RuntimeError, "ZeroDivisionError");
        else if (status != 0)
            PyErr_SetString(PyExc_IndexError, "index out of range in self");
    }
    if (words != stack)
        PyMem_Free(words);
    if (status != 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "buffers", "sizes", "name", "keep", NULL};
    unsigned long long address;
    Py_ssize_t n_buffers, n_sizes;
    PyObject *name, *keep = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KnnU|O", names, &address, &n_buffers, &n_sizes, &name, &keep))
        return NULL;
    if (torch_get_data_ptr == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "weft._cpu.configure() has not been called");
        return NULL;
    }
    Kernel *self = (Kernel *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = kernel_call;
    self->entry = (entry_fn)(uintptr_t)address;
    self->n_buffers = n_buffers;
    self->n_sizes = n_sizes;
    self->name = Py_NewRef(name);
    self->keep = Py_NewRef(keep);
    return (PyObject *)self;
}

static void kernel_dealloc(PyObject *object)
{
    Kernel *self = (Kernel *)object;
    Py_XDECREF(self->name);
    Py_XDECREF(self->keep);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *kernel_repr(PyObject *object)
{
    return PyUnicode_FromFormat("<weft kernel %U>", ((Kernel *)object)->name);
}

static PyMemberDef kernel_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Kernel, vectorcall), READONLY, NULL},
    {"__name__", T_OBJECT, offsetof(Kernel, name), READONLY, NULL},
    {"name", T_OBJECT, offsetof(Kernel, name), READONLY, NULL},
    {"keep", T_OBJECT, offsetof(Kernel, keep), READONLY, "What keeps the code loaded."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject kernel_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "weft._cpu.Kernel",
    .tp_doc = "Kernel(address, buffers, sizes, name, keep=None): a compiled function as a callable.",
    .tp_basicsize = sizeof(Kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = kernel_new,
    .tp_dealloc = kernel_dealloc,
    .tp_repr = kernel_repr,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Kernel, vectorcall),
    .tp_members = kernel_members,
};

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long get_data_ptr;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "nK", &offset, &get_data_ptr))
        return NULL;
    tensor_offset = offset;
    torch_get_data_ptr = (get_data_ptr_fn)(uintptr_t)get_data_ptr;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS,
     "configure(tensor_offset, get_data_ptr): where to find a tensor's data."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "weft._cpu", "Calls compiled C++ kernels.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__cpu(void)
{
    if (PyType_Ready(&kernel_type) < 0)
        return NULL;
    PyObject *created = PyModule_Create(&module);
    if (created == NULL)
        return NULL;
    if (PyModule_AddObjectRef(created, "Kernel", (PyObject *)&kernel_type) < 0) {
        Py_DECREF(created);
        return NULL;
    }
    return created;
}
