/* weft._held: tensors as they are now, kept until somebody asks whether they are the same still.
 *
 * Place in the pipeline: runtime/held_tensors.py makes it for the inputs that a compiled forward saves.
 *
 *     held = Held((w, x))       each tensor, and an alias of it that keeps its memory and layout
 *     w.data = other
 *     held.changed()            True
 *     held.old()                [the alias of w, None]
 *
 * No torch headers: the addresses of torch's C functions (`aoti_torch_*`) and of the function that makes
 * a tensor's Python object are passed to configure(). The caller guarantees strided tensors with memory.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef void *Tensor; /* an at::Tensor* */

static struct {
    int32_t (*get_data)(Tensor, void **);
    int32_t (*get_dim)(Tensor, int64_t *);
    int32_t (*get_sizes)(Tensor, int64_t **);
    int32_t (*get_strides)(Tensor, int64_t **);
    int32_t (*get_dtype)(Tensor, int32_t *);
    int32_t (*get_device)(Tensor, int32_t *);
    int32_t (*reinterpret)(Tensor, int64_t, const int64_t *, const int64_t *, int64_t, Tensor *);
    int32_t (*delete_tensor)(Tensor);
    PyObject *(*wrap)(Tensor);
} torch;

static Py_ssize_t tensor_offset; /* of the at::Tensor inside a torch.Tensor object */

typedef struct {
    PyObject *tensor;
    Tensor alias;
} Entry;

typedef struct {
    PyObject_VAR_HEAD
    Entry entries[];
} Held;

/* What says where a tensor's items are. */
typedef struct {
    void *data;
    int64_t dim, *sizes, *strides;
    int32_t dtype, device;
} Layout;

static bool read_layout(Tensor tensor, Layout *found)
{
    return torch.get_data(tensor, &found->data) == 0 && torch.get_dim(tensor, &found->dim) == 0 &&
           torch.get_sizes(tensor, &found->sizes) == 0 && torch.get_strides(tensor, &found->strides) == 0 &&
           torch.get_dtype(tensor, &found->dtype) == 0 && torch.get_device(tensor, &found->device) == 0;
}

static Tensor tensor_in(PyObject *object)
{
    return (char *)object + tensor_offset;
}

static bool is_same(const Entry *entry)
{
    Layout now, then;
    if (!read_layout(tensor_in(entry->tensor), &now) || !read_layout(entry->alias, &then))
        return false;
    size_t bytes = (size_t)now.dim * sizeof *now.sizes;
    return now.data == then.data && now.dim == then.dim && now.dtype == then.dtype && now.device == then.device &&
           memcmp(now.sizes, then.sizes, bytes) == 0 && memcmp(now.strides, then.strides, bytes) == 0;
}

static int hold(Entry *entry, PyObject *tensor)
{
    Layout now;
    if (!read_layout(tensor_in(tensor), &now) ||
        torch.reinterpret(tensor_in(tensor), now.dim, now.sizes, now.strides, 0, &entry->alias) != 0) {
        PyErr_SetString(PyExc_ValueError, "a tensor without memory cannot be held");
        return -1;
    }
    entry->tensor = Py_NewRef(tensor);
    return 0;
}

static PyObject *held_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *tensors;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &tensors))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(tensors);
    Held *self = (Held *)type->tp_alloc(type, n); /* zeroed */
    if (self == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        if (hold(&self->entries[i], PyTuple_GET_ITEM(tensors, i)) < 0) {
            Py_DECREF(self);
            return NULL;
        }
    return (PyObject *)self;
}

static PyObject *held_changed(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Held *self = (Held *)object;
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++)
        if (self->entries[i].tensor != NULL && !is_same(&self->entries[i]))
            Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

static PyObject *held_old(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Held *self = (Held *)object;
    PyObject *found = PyList_New(Py_SIZE(self));
    for (Py_ssize_t i = 0; found != NULL && i < Py_SIZE(self); i++) {
        const Entry *entry = &self->entries[i];
        bool keep = entry->tensor == NULL || is_same(entry);
        PyObject *item = keep ? Py_NewRef(Py_None) : torch.wrap(entry->alias);
        if (item == NULL)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, i, item);
    }
    return found;
}

static int held_clear(PyObject *object)
{
    Held *self = (Held *)object;
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Entry *entry = &self->entries[i];
        if (entry->alias != NULL)
            torch.delete_tensor(entry->alias);
        entry->alias = NULL;
        Py_CLEAR(entry->tensor);
    }
    return 0;
}

static PyObject *held_release(PyObject *object, PyObject *Py_UNUSED(unused))
{
    held_clear(object);
    Py_RETURN_NONE;
}

static int held_traverse(PyObject *object, visitproc visit, void *arg)
{
    Held *self = (Held *)object;
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++)
        Py_VISIT(self->entries[i].tensor);
    return 0;
}

static void held_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    held_clear(object);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef held_methods[] = {
    {"changed", held_changed, METH_NOARGS, "Whether a tensor has other memory or another layout now."},
    {"old", held_old, METH_NOARGS, "For each tensor that has changed, what it was; None for others."},
    {"release", held_release, METH_NOARGS, "Hold nothing any more: from then on nothing has changed."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject held_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "weft._held.Held",
    .tp_doc = "Held(tensors): tensors, and aliases of what they are now.",
    .tp_basicsize = offsetof(Held, entries),
    .tp_itemsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = held_new,
    .tp_dealloc = held_dealloc,
    .tp_traverse = held_traverse,
    .tp_clear = held_clear,
    .tp_methods = held_methods,
};

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long found[9];
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "nKKKKKKKKK", &offset, &found[0], &found[1], &found[2], &found[3], &found[4],
                          &found[5], &found[6], &found[7], &found[8]))
        return NULL;
    tensor_offset = offset;
    torch.get_data = (void *)(uintptr_t)found[0];
    torch.get_dim = (void *)(uintptr_t)found[1];
    torch.get_sizes = (void *)(uintptr_t)found[2];
    torch.get_strides = (void *)(uintptr_t)found[3];
    torch.get_dtype = (void *)(uintptr_t)found[4];
    torch.get_device = (void *)(uintptr_t)found[5];
    torch.reinterpret = (void *)(uintptr_t)found[6];
    torch.delete_tensor = (void *)(uintptr_t)found[7];
    torch.wrap = (void *)(uintptr_t)found[8];
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS,
     "configure(tensor_offset, get_data_ptr, get_dim, get_sizes, get_strides, get_dtype, get_device_type,\n"
     "          reinterpret_tensor, delete_tensor_object, wrap): where torch's functions are."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "weft._held", "Tensors as they were.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__held(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyType_Ready(&held_type) < 0 || PyModule_AddObjectRef(module, "Held", (PyObject *)&held_type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
