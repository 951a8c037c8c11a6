/* weft._watched: notices that the memory of tensors has been written, or may have been.
 *
 * Place in the pipeline: runtime/kept_forms.py keeps what was computed of parameters (packed, folded, merged)
 * as long as `Watch.holds(tensors)`.
 *
 * Version counters do not see `p.data.add_(1)`, a fused optimizer, or NumPy. But every access that could write
 * asks the c10::StorageImpl, which all aliases share, for a mutable pointer; and a StorageImpl may have a
 * function that is called (once) before it gives one: PyTorch's hook for copy-on-write. Our function does
 * nothing: that it is gone says that somebody got a pointer to write with. PyTorch's own readers ask for
 * constant pointers; one that does not, only costs a form.
 *
 * No torch headers: the offsets inside a StorageImpl are measured by runtime/watched_storages.py, which
 * verifies on tensors that the hook works, and passed to configure() together with torch's addresses.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static struct {
    Py_ssize_t tensor;  /* of the TensorImpl pointer inside a torch.Tensor object */
    Py_ssize_t storage; /* of the StorageImpl pointer inside a TensorImpl */
    Py_ssize_t hook;    /* of the function inside a StorageImpl */
    Py_ssize_t flag;    /* of the byte that says that mutable accesses are checked */
    int32_t (*get_const_data)(void *tensor, const void **data);
} torch;

/* The hook. PyTorch removes it after the call. */
static void is_about_to_be_written(void *storage)
{
    (void)storage;
}

typedef struct {
    void *storage;
    uint64_t *epoch;     /* of the storage: how often it has been watched anew, by anybody */
    uint64_t seen;
    const void *data;
} Entry;

typedef struct {
    PyObject_VAR_HEAD
    Entry entries[];
} Watch;

/* ---- epochs -------------------------------------------------------------------------------------- */

/* If one watcher finds a storage written and watches it again, the others must not believe that nothing
 * happened. Epochs stay for the life of the process: a storage at the address of a freed one has its next. */
static PyObject *epochs_; /* address -> capsule of a uint64_t */

static uint64_t *epoch_of(void *storage)
{
    PyObject *key = PyLong_FromVoidPtr(storage);
    if (key == NULL)
        return NULL;
    PyObject *capsule = PyDict_GetItemWithError(epochs_, key);
    uint64_t *epoch = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL);
    if (capsule == NULL && !PyErr_Occurred() && (epoch = PyMem_Calloc(1, sizeof *epoch)) != NULL) {
        capsule = PyCapsule_New(epoch, NULL, NULL);
        if (capsule == NULL || PyDict_SetItem(epochs_, key, capsule) < 0) {
            PyMem_Free(epoch);
            epoch = NULL;
        }
        Py_XDECREF(capsule);
    }
    Py_DECREF(key);
    return epoch;
}

/* ---- watching ------------------------------------------------------------------------------------ */

static void **hook_of(void *storage)
{
    return (void **)((char *)storage + torch.hook);
}

static void *storage_of(PyObject *tensor)
{
    char *impl = *(char **)((char *)tensor + torch.tensor);
    return impl == NULL ? NULL : *(void **)(impl + torch.storage);
}

static const void *data_of(PyObject *tensor)
{
    const void *data = NULL;
    return torch.get_const_data((char *)tensor + torch.tensor, &data) == 0 ? data : NULL;
}

static bool is_watched(void *storage)
{
    return *hook_of(storage) == (void *)is_about_to_be_written;
}

/* False: the storage has another hook already (it is copy-on-write). */
static bool watch(void *storage, uint64_t *epoch)
{
    if (is_watched(storage))
        return true;
    if (*hook_of(storage) != NULL)
        return false;
    *hook_of(storage) = (void *)is_about_to_be_written;
    *((char *)storage + torch.flag) = 1;
    ++*epoch;
    return true;
}

static bool enter(Entry *entry, PyObject *tensor)
{
    entry->storage = storage_of(tensor);
    entry->data = entry->storage == NULL ? NULL : data_of(tensor);
    if (entry->data == NULL || (entry->epoch = epoch_of(entry->storage)) == NULL ||
        !watch(entry->storage, entry->epoch))
        return false;
    entry->seen = *entry->epoch;
    return true;
}

static PyObject *watch_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *tensors;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &tensors))
        return NULL;
    if (torch.get_const_data == NULL)
        return PyErr_Format(PyExc_RuntimeError, "weft._watched.configure() has not been called");
    Py_ssize_t n = PyTuple_GET_SIZE(tensors);
    Watch *self = (Watch *)type->tp_alloc(type, n);
    if (self == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!enter(&self->entries[i], PyTuple_GET_ITEM(tensors, i))) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "a tensor whose memory cannot be watched");
            Py_DECREF(self);
            return NULL;
        }
    return (PyObject *)self;
}

static bool is_unwritten(const Entry *entry, PyObject *tensor)
{
    return storage_of(tensor) == entry->storage && is_watched(entry->storage) &&
           *entry->epoch == entry->seen && data_of(tensor) == entry->data;
}

/* holds(inputs, positions): vectorised over the positions of the watched tensors in a list of inputs. */
static PyObject *watch_holds(PyObject *object, PyObject *const *args, Py_ssize_t n_args)
{
    Watch *self = (Watch *)object;
    if (n_args != 2 || !PyList_Check(args[0]) || !PyTuple_Check(args[1]) ||
        PyTuple_GET_SIZE(args[1]) != Py_SIZE(self))
        return PyErr_Format(PyExc_TypeError, "holds(inputs, positions) takes a list and a tuple");
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], i));
        if (at < 0 || at >= PyList_GET_SIZE(args[0]))
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_IndexError, "no input %zd", at);
        if (!is_unwritten(&self->entries[i], PyList_GET_ITEM(args[0], at)))
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyMethodDef watch_methods[] = {
    {"holds", (PyCFunction)(void (*)(void))watch_holds, METH_FASTCALL,
     "Whether these inputs are the watched tensors, with the memory of then, which nobody could write since."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject watch_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "weft._watched.Watch",
    .tp_doc = "Watch(tensors): from now on, writes to their memory are noticed.",
    .tp_basicsize = offsetof(Watch, entries),
    .tp_itemsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = watch_new,
    .tp_methods = watch_methods,
};

/* ---- the module ---------------------------------------------------------------------------------- */

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long get_const_data;
    if (!PyArg_ParseTuple(args, "nnnnK", &torch.tensor, &torch.storage, &torch.hook, &torch.flag, &get_const_data))
        return NULL;
    torch.get_const_data = (void *)(uintptr_t)get_const_data;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS,
     "configure(tensor, storage, hook, flag, get_const_data_ptr): offsets and torch's function."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "weft._watched", "Writes to the memory of tensors, noticed.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__watched(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    epochs_ = PyDict_New();
    if (epochs_ == NULL || PyType_Ready(&watch_type) < 0 ||
        PyModule_AddObjectRef(module, "Watch", (PyObject *)&watch_type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
