/* Whether tensors that a graph writes to share memory with its other arguments.
 *
 * Place in the pipeline: aot/runtime_wrapper.py calls it for each call of a graph that mutates its inputs
 * (batch norm statistics, an optimizer's step: hundreds of tensors). Such a graph was compiled for inputs
 * that do not overlap; tensors of one storage are assumed to overlap.
 */
#include "weft_frame.h"

typedef struct {
    const void *storage;
    bool written;
} Seen;

/* The StorageImpl of a tensor; NULL for other values, and with an exception if it cannot be read. */
static const void *storage_of(PyObject *value)
{
    if (!is_tensor(value))
        return NULL;
    if (tensor_access_ready())
        return tensor_storage(tensor_impl(value));
    PyObject *storage = PyObject_CallMethod(value, "untyped_storage", NULL);
    PyObject *address = storage != NULL ? PyObject_GetAttrString(storage, "_cdata") : NULL;
    const void *result = address != NULL ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(storage);
    Py_XDECREF(address);
    return result;
}

/* Adds a storage to the table (open addressing); returns whether it overlaps. */
static bool overlaps(Seen *table, size_t mask, const void *storage, bool written)
{
    size_t at = ((uintptr_t)storage >> 4) * 0x9E3779B97F4A7C15u >> 16;
    for (;; at++) {
        Seen *seen = &table[at & mask];
        if (seen->storage == NULL) {
            *seen = (Seen){storage, written};
            return false;
        }
        if (seen->storage != storage)
            continue;
        if (written || seen->written)
            return true;
        return false;
    }
}

static int mark_written(PyObject *written, Py_ssize_t n, char *marks)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(written); i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(written, i));
        if (at < 0 || at >= n) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_IndexError, "distinct_storages: no tensor %zd", at);
            return -1;
        }
        marks[at] = 1;
    }
    return 0;
}

/* 1: distinct, 0: an overlap, -1: exception. */
static int are_distinct(PyObject *tensors, const char *marks, Seen *table, size_t mask)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
        const void *storage = storage_of(PyList_GET_ITEM(tensors, i));
        if (storage == NULL && PyErr_Occurred())
            return -1;
        if (storage != NULL && overlaps(table, mask, storage, marks[i]))
            return 0;
    }
    return 1;
}

static PyObject *frame_distinct_storages(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensors, *written;
    if (!PyArg_ParseTuple(args, "O!O!:distinct_storages", &PyList_Type, &tensors, &PyTuple_Type,
                          &written))
        return NULL;
    tensor_access_calibrate();
    Py_ssize_t n = PyList_GET_SIZE(tensors);
    size_t room = 16;
    while (room < 2 * (size_t)n)
        room *= 2;
    Seen *table = PyMem_Calloc(room, sizeof(Seen));
    char *marks = PyMem_Calloc((size_t)n + 1, 1);
    int distinct = -1;
    if (table == NULL || marks == NULL)
        PyErr_NoMemory();
    else if (mark_written(written, n, marks) == 0)
        distinct = are_distinct(tensors, marks, table, room - 1);
    PyMem_Free(table);
    PyMem_Free(marks);
    return distinct < 0 ? NULL : PyBool_FromLong(distinct);
}

static PyMethodDef functions[] = {
    {"distinct_storages", frame_distinct_storages, METH_VARARGS,
     PyDoc_STR("distinct_storages(tensors: list, written: tuple of positions) -> bool\n\n"
               "Whether no tensor at a written position shares its storage with another one of the\n"
               "list. What is not a tensor is passed over.")},
    {NULL, NULL, 0, NULL},
};

int storage_overlap_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
