/* Whether tensors that a graph writes to share memory with its other arguments.
 *
 * Place in the pipeline: aot/runtime_wrapper.py calls it for each call of a graph that mutates its inputs
 * (batch norm statistics, an optimizer's step: hundreds of tensors). Such a graph was compiled for inputs
 * that do not overlap; tensors of one storage are assumed to overlap. Storages of PyTorch's allocators are
 * apart; one of foreign memory (a NumPy array's, a buffer's) may lie in another one's, which their addresses
 * tell.
 */
#include "weft_frame.h"

typedef struct {
    const void *storage;
    bool written;
} Seen;

typedef struct {
    uintptr_t start, end;
    bool written;
} Range;

/* ---- memory of storages ------------------------------------------------------------------------ */

/* Words of a c10::StorageImpl that are searched. */
enum { STORAGE_WORDS = 9, OWN = 4, N_PROBES = 2 * OWN };

/* Offsets inside a c10::StorageImpl, measured as those of tensors are (tensor_access.c). */
static struct {
    bool tried;
    bool ready;
    int data;
    int context; /* what the deleter takes: PyTorch's allocators give the data itself */
    int n_bytes;
} memory_;

static const char PROBES[] =
    "import torch\n"
    "own = [torch.empty(n, dtype=torch.uint8) for n in (104, 216, 328, 1112)]\n"
    "foreign = [torch.frombuffer(bytearray(n), dtype=torch.uint8) for n in (112, 224, 336, 1120)]\n"
    "probes = [(s._cdata, s.data_ptr(), s.nbytes())\n"
    "          for s in (t.untyped_storage() for t in own + foreign)]\n";

/* The only word that fits all storages: it is (or, in foreign ones, is not) the wanted one. */
static int find_word(const uint64_t *const *storages, const uint64_t *want, bool foreign_too, int other_than)
{
    for (int at = 1; at < STORAGE_WORDS; at++) {
        bool fits = at != other_than;
        for (int i = 0; i < N_PROBES && fits; i++)
            fits = (storages[i][at] == want[i]) == (i < OWN || foreign_too);
        if (fits)
            return at;
    }
    return 0;
}

static bool find_memory(PyObject *rows)
{
    const uint64_t *storages[N_PROBES];
    uint64_t data[N_PROBES], n_bytes[N_PROBES];
    if (rows == NULL || PyList_GET_SIZE(rows) != N_PROBES)
        return false;
    for (int i = 0; i < N_PROBES; i++) {
        PyObject *row = PyList_GET_ITEM(rows, i);
        storages[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(row, 0));
        data[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(row, 1));
        n_bytes[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(row, 2));
    }
    memory_.data = find_word(storages, data, true, 0);
    memory_.n_bytes = find_word(storages, n_bytes, true, 0);
    memory_.context = find_word(storages, data, false, memory_.data);
    return memory_.data != 0 && memory_.n_bytes != 0 && memory_.context != 0;
}

static void calibrate_memory(void)
{
    if (memory_.tried)
        return;
    memory_.tried = true;
    PyObject *scope = PyDict_New();
    if (scope != NULL && PyDict_SetItemString(scope, "__builtins__", PyEval_GetBuiltins()) == 0) {
        PyObject *done = PyRun_String(PROBES, Py_file_input, scope, scope);
        memory_.ready = done != NULL && find_memory(PyDict_GetItemString(scope, "probes"));
        Py_XDECREF(done);
    }
    Py_XDECREF(scope);
    PyErr_Clear();
}

static bool is_foreign(const void *storage)
{
    const uint64_t *words = storage;
    return memory_.ready && words[memory_.context] != words[memory_.data];
}

static int compare_starts(const void *left, const void *right)
{
    uintptr_t a = ((const Range *)left)->start, b = ((const Range *)right)->start;
    return (a > b) - (a < b);
}

/* Whether a written range lies in part in another one. */
static bool ranges_overlap(Range *ranges, Py_ssize_t n)
{
    uintptr_t end = 0, written_end = 0;
    qsort(ranges, (size_t)n, sizeof(Range), compare_starts);
    for (Py_ssize_t i = 0; i < n; i++) {
        const Range *range = &ranges[i];
        if (range->start < written_end || (range->written && range->start < end))
            return true;
        end = range->end > end ? range->end : end;
        if (range->written && range->end > written_end)
            written_end = range->end;
    }
    return false;
}

/* ---- tensors ----------------------------------------------------------------------------------- */

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

/* As are_distinct, of tensors with storages of their own, by addresses. */
static int are_apart(PyObject *tensors, const char *marks)
{
    Py_ssize_t n = 0;
    Range *ranges = PyMem_Calloc((size_t)PyList_GET_SIZE(tensors) + 1, sizeof(Range));
    if (ranges == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
        const uint64_t *words = storage_of(PyList_GET_ITEM(tensors, i));
        if (words != NULL && words[memory_.data] != 0)
            ranges[n++] = (Range){words[memory_.data], words[memory_.data] + words[memory_.n_bytes], marks[i]};
    }
    int apart = !ranges_overlap(ranges, n);
    PyMem_Free(ranges);
    return PyErr_Occurred() ? -1 : apart;
}

/* 1: distinct, 0: an overlap, -1: exception. */
static int are_distinct(PyObject *tensors, const char *marks, Seen *table, size_t mask)
{
    bool foreign = false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
        const void *storage = storage_of(PyList_GET_ITEM(tensors, i));
        if (storage == NULL && PyErr_Occurred())
            return -1;
        if (storage != NULL && overlaps(table, mask, storage, marks[i]))
            return 0;
        foreign |= storage != NULL && is_foreign(storage);
    }
    return foreign ? are_apart(tensors, marks) : 1;
}

static PyObject *frame_distinct_storages(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensors, *written;
    if (!PyArg_ParseTuple(args, "O!O!:distinct_storages", &PyList_Type, &tensors, &PyTuple_Type,
                          &written))
        return NULL;
    tensor_access_calibrate();
    calibrate_memory();
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
               "Whether no tensor at a written position shares its memory with another one of the\n"
               "list. What is not a tensor is passed over.")},
    {NULL, NULL, 0, NULL},
};

int storage_overlap_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
