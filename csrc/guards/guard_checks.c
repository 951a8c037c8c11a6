/* One check on one value: parsing `(kind, *args, guard_id)` and running it.
 *
 * A kind is one row of `kinds` at the end: its name, the number of its arguments, the function that
 * prepares them, and the function that runs the check. To add a kind, write that function and add a
 * row. A check that raises an ordinary exception fails; the caller (guards.c) handles that.
 */
#include "weft_frame.h"

/* ---- constants: equal, and of the same exact type, all the way down ----------------------------- */

static bool constant_equal(PyObject *a, PyObject *b);

static bool double_equal(double a, double b)
{
    if (a != a || b != b)
        return a != a && b != b;
    return memcmp(&a, &b, sizeof(a)) == 0; /* 0.0 and -0.0 differ */
}

static bool tuple_equal(PyObject *a, PyObject *b)
{
    if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++)
        if (!constant_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i)))
            return false;
    return true;
}

/* Whether some item of the tuple equals `wanted`. */
static bool tuple_holds(PyObject *items, PyObject *wanted)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++)
        if (constant_equal(PyTuple_GET_ITEM(items, i), wanted))
            return true;
    return false;
}

static bool frozenset_equal(PyObject *a, PyObject *b)
{
    if (PySet_GET_SIZE(a) != PySet_GET_SIZE(b) || PyObject_RichCompareBool(a, b, Py_EQ) != 1)
        return false;
    PyObject *left = PySequence_Tuple(a), *right = PySequence_Tuple(b);
    bool equal = left != NULL && right != NULL;
    for (Py_ssize_t i = 0; equal && i < PyTuple_GET_SIZE(left); i++)
        equal = tuple_holds(right, PyTuple_GET_ITEM(left, i)); /* 1 and True are equal, not the same */
    Py_XDECREF(left);
    Py_XDECREF(right);
    return equal;
}

static bool is_plain_constant_type(PyTypeObject *type)
{
    return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBytes_Type;
}

static bool constant_equal(PyObject *a, PyObject *b)
{
    if (a == b)
        return true;
    PyTypeObject *type = Py_TYPE(a);
    if (type != Py_TYPE(b))
        return false;
    if (is_plain_constant_type(type))
        return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
    if (type == &PyFloat_Type)
        return double_equal(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
    if (type == &PyComplex_Type)
        return double_equal(PyComplex_RealAsDouble(a), PyComplex_RealAsDouble(b)) &&
               double_equal(PyComplex_ImagAsDouble(a), PyComplex_ImagAsDouble(b));
    if (type == &PyTuple_Type)
        return tuple_equal(a, b);
    if (type == &PyFrozenSet_Type)
        return frozenset_equal(a, b);
    return false; /* bool, None, Ellipsis are equal only to themselves */
}

static bool is_constant(PyObject *value);

static bool all_constant(PyObject *items)
{
    PyObject *fast = PySequence_Tuple(items);
    bool all = fast != NULL;
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(fast); i++)
        all = is_constant(PyTuple_GET_ITEM(fast, i));
    Py_XDECREF(fast);
    return all;
}

static bool is_constant(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyTuple_Type || type == &PyFrozenSet_Type)
        return all_constant(value);
    return value == Py_None || value == Py_Ellipsis || type == &PyBool_Type ||
           type == &PyFloat_Type || type == &PyComplex_Type || is_plain_constant_type(type);
}

/* ---- the checks --------------------------------------------------------------------------------- */

#define CHECK(name) \
    static int name(const Check *check, PyObject *value, PyObject *const *Py_UNUSED(slots))

CHECK(check_type_is)
{
    return (PyObject *)Py_TYPE(value) == check->operand;
}

CHECK(check_is)
{
    return value == check->operand;
}

/* The operand is a weak reference: once its object is freed, no value passes. */
CHECK(check_is_alive)
{
    return value == ((PyWeakReference *)check->operand)->wr_object && value != Py_None;
}

CHECK(check_is_not)
{
    return value != check->operand;
}

CHECK(check_eq)
{
    return constant_equal(value, check->operand);
}

CHECK(check_len)
{
    Py_ssize_t length = PyTuple_Check(value)  ? PyTuple_GET_SIZE(value)
                        : PyList_Check(value) ? PyList_GET_SIZE(value)
                        : PyDict_Check(value) ? PyDict_GET_SIZE(value)
                                              : PyObject_Size(value);
    return length < 0 ? -1 : length == check->number;
}

static int key_equal(PyObject *a, PyObject *b)
{
    if (a == b || constant_equal(a, b))
        return 1;
    if (Py_TYPE(a) != Py_TYPE(b) || is_constant(a))
        return 0;
    return PyObject_RichCompareBool(a, b, Py_EQ);
}

CHECK(check_dict_keys)
{
    PyObject *key;
    Py_ssize_t at = 0, n = PyTuple_GET_SIZE(check->operand);
    if (!PyDict_Check(value) || PyDict_GET_SIZE(value) != n)
        return 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!PyDict_Next(value, &at, &key, NULL))
            return 0;
        Py_INCREF(key);
        int same = key_equal(key, PyTuple_GET_ITEM(check->operand, i));
        Py_DECREF(key);
        if (same != 1)
            return same;
    }
    return 1;
}

CHECK(check_missing_key)
{
    int found = PyDict_Check(value) ? PyDict_Contains(value, check->operand)
                                    : PySequence_Contains(value, check->operand);
    return found < 0 ? -1 : !found;
}

CHECK(check_no_attr)
{
    PyObject *found = PyObject_GetAttr(value, check->operand);
    if (found != NULL) {
        Py_DECREF(found);
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError))
        return -1;
    PyErr_Clear();
    return 1;
}

static int check_same_as_slot(const Check *check, PyObject *value, PyObject *const *slots)
{
    return slots[check->number] == value;
}

int predicate_holds(PyObject *predicate, PyObject *value)
{
    PyObject *answer = PyObject_CallOneArg(predicate, value);
    if (answer == NULL)
        return -1;
    int truth = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return truth;
}

CHECK(check_py)
{
    return predicate_holds(check->operand, value);
}

/* The memory of a tensor, dense and on a CPU according to its "tensor" check, holds these bytes. */
CHECK(check_content)
{
    PyObject *bytes = PyTuple_GET_ITEM(check->operand, 0);
    const void *data = tensor_data(value);
    if (data != NULL)
        return memcmp(data, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes)) == 0;
    PyObject *answer = PyObject_CallOneArg(PyTuple_GET_ITEM(check->operand, 1), value);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : answer == Py_True;
}

/* ---- tensors ------------------------------------------------------------------------------------ */

static bool extents_match(const TensorSpec *spec, const int64_t *sizes, const int64_t *strides)
{
    const int64_t *want = spec->extents;
    for (Py_ssize_t i = 0; i < spec->rank; i++)
        if (want[i] != sizes[i] && want[i] != ANY_EXTENT)
            return false;
    if (spec->any_strides)
        return true;
    for (Py_ssize_t i = 0; i < spec->rank; i++)
        if (want[spec->rank + i] != strides[i] && want[spec->rank + i] != ANY_EXTENT)
            return false;
    return true;
}

/* The check by direct reads. False also if only the slower check below can decide. */
bool tensor_spec_matches_quickly(const TensorSpec *spec, PyObject *value)
{
    if (Py_TYPE(value) != spec->type || !spec->learned)
        return false;
    const void *impl = tensor_impl(value);
    TensorMeta meta;
    tensor_read(impl, &meta);
    return meta.key_set == spec->key_set && meta.dtype_device == spec->dtype_device &&
           (spec->any_rank || (meta.rank == spec->rank &&
                               extents_match(spec, meta.sizes, meta.strides))) &&
           tensor_requires_grad(impl) == spec->requires_grad;
}

/* The same check through Python attributes. It also refuses conjugated, negated and functorch-wrapped
 * tensors and zeros without memory, which otherwise look like plain ones. `names`: the arguments of
 * `tensor_attributes`. */
static const char ATTRIBUTES[] =
    "import torch\n"
    "wrapped = torch._C._functorch.is_functorch_wrapped_tensor\n"
    "def tensor_attributes(t):\n"
    "    with torch._C.DisableTorchFunction():\n"
    "        if wrapped(t) or t.is_conj() or t.is_neg() or t._is_zerotensor():\n"
    "            return None\n"
    "        strided = t.layout is torch.strided and not t.is_nested\n"
    "        index = -1 if t.device.index is None else t.device.index\n"
    "        return (t.dtype, t.device.type, index, t.layout, t.requires_grad,\n"
    "                None if t.is_nested else tuple(t.shape), t.stride() if strided else None)\n";

static PyObject *tensor_attributes(PyObject *value)
{
    static PyObject *function;
    if (function == NULL) {
        PyObject *names = PyDict_New();
        if (names == NULL)
            return NULL;
        PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins());
        PyObject *done = PyRun_String(ATTRIBUTES, Py_file_input, names, names);
        if (done != NULL)
            function = Py_XNewRef(PyDict_GetItemString(names, "tensor_attributes"));
        Py_XDECREF(done);
        Py_DECREF(names);
        if (function == NULL)
            return NULL;
    }
    PyObject *previous = hook_swap(NULL); /* our own Python is not to be compiled */
    PyObject *result = PyObject_CallOneArg(function, value);
    Py_XDECREF(hook_swap(previous));
    return result;
}

/* 1 if every checked extent has the wanted value. */
static int extents_match_tuple(const int64_t *want, Py_ssize_t rank, PyObject *extents)
{
    if (extents == Py_None || PyTuple_GET_SIZE(extents) != rank)
        return 0;
    for (Py_ssize_t i = 0; i < rank; i++) {
        if (want[i] == ANY_EXTENT)
            continue;
        int64_t extent = PyLong_AsLongLong(PyTuple_GET_ITEM(extents, i));
        if (extent == -1 && PyErr_Occurred())
            return -1; /* a symbolic size */
        if (extent != want[i])
            return 0;
    }
    return 1;
}

static int attributes_match(const TensorSpec *spec, PyObject *found)
{
    enum { DTYPE, DEVICE, INDEX, LAYOUT, GRAD, SIZES, STRIDES };
    if (PyTuple_GET_ITEM(found, DTYPE) != spec->dtype ||
        PyTuple_GET_ITEM(found, LAYOUT) != spec->layout ||
        PyUnicode_Compare(PyTuple_GET_ITEM(found, DEVICE), spec->device_type) != 0 ||
        PyLong_AsLong(PyTuple_GET_ITEM(found, INDEX)) != spec->device_index ||
        (PyTuple_GET_ITEM(found, GRAD) == Py_True) != spec->requires_grad)
        return 0;
    if (spec->any_rank)
        return 1;
    int same = extents_match_tuple(spec->extents, spec->rank, PyTuple_GET_ITEM(found, SIZES));
    if (same == 1 && !spec->any_strides)
        same = extents_match_tuple(spec->extents + spec->rank, spec->rank,
                                   PyTuple_GET_ITEM(found, STRIDES));
    return same;
}

CHECK(check_tensor)
{
    TensorSpec *spec = check->tensor;
    if (Py_TYPE(value) != spec->type)
        return 0;
    if (tensor_spec_matches_quickly(spec, value))
        return 1;
    if (spec->learned) {
        TensorMeta meta;
        tensor_read(tensor_impl(value), &meta);
        if (meta.key_set == spec->key_set)
            return 0; /* an ordinary difference: size, dtype, ... */
    }
    PyObject *found = tensor_attributes(value);
    if (found == NULL || found == Py_None) {
        Py_XDECREF(found);
        return found == NULL ? -1 : 0;
    }
    int same = attributes_match(spec, found);
    Py_DECREF(found);
    if (same == 1 && tensor_access_ready()) {
        TensorMeta meta;
        tensor_read(tensor_impl(value), &meta);
        spec->key_set = meta.key_set;
        spec->dtype_device = meta.dtype_device;
        spec->learned = true;
    }
    return same;
}

/* ---- parsing ------------------------------------------------------------------------------------ */

static void tensor_spec_free(TensorSpec *spec)
{
    if (spec == NULL)
        return;
    Py_XDECREF((PyObject *)spec->type);
    Py_XDECREF(spec->dtype);
    Py_XDECREF(spec->device_type);
    Py_XDECREF(spec->layout);
    PyMem_Free(spec->extents);
    PyMem_Free(spec);
}

static int parse_extents(PyObject *tuple, Py_ssize_t rank, int64_t *extents)
{
    if (tuple != Py_None && (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != rank)) {
        PyErr_SetString(PyExc_TypeError, "tensor guard: sizes and strides are tuples of one length");
        return -1;
    }
    for (Py_ssize_t i = 0; i < rank; i++) {
        PyObject *extent = tuple == Py_None ? Py_None : PyTuple_GET_ITEM(tuple, i);
        extents[i] = extent == Py_None ? ANY_EXTENT : PyLong_AsLongLong(extent);
        if (extents[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* tuple: ("tensor", type, dtype, device type, device index, layout, requires_grad, sizes, strides, id) */
static int prepare_tensor(PyObject *tuple, Py_ssize_t Py_UNUSED(n_slots), Check *check)
{
    PyObject *type, *dtype, *device, *index, *layout, *grad, *sizes, *strides, *kind, *id;
    if (!PyArg_ParseTuple(tuple, "OO!OUOOOOOO:tensor guard", &kind, &PyType_Type, &type, &dtype,
                          &device, &index, &layout, &grad, &sizes, &strides, &id))
        return -1;
    TensorSpec *spec = check->tensor = PyMem_Calloc(1, sizeof(TensorSpec));
    if (spec == NULL)
        return PyErr_NoMemory(), -1;
    spec->type = (PyTypeObject *)Py_NewRef(type);
    spec->dtype = Py_NewRef(dtype);
    spec->device_type = Py_NewRef(device);
    spec->layout = Py_NewRef(layout);
    spec->device_index = index == Py_None ? -1 : PyLong_AsLong(index);
    spec->requires_grad = PyObject_IsTrue(grad) == 1;
    spec->any_rank = sizes == Py_None;
    spec->any_strides = strides == Py_None;
    if (PyErr_Occurred())
        return -1;
    if (!spec->any_rank && !PyTuple_Check(sizes))
        return parse_extents(sizes, -1, NULL);
    spec->rank = spec->any_rank ? 0 : PyTuple_GET_SIZE(sizes);
    spec->extents = PyMem_Calloc((size_t)(2 * spec->rank + 1), sizeof(int64_t));
    if (spec->extents == NULL)
        return PyErr_NoMemory(), -1;
    tensor_access_calibrate();
    return parse_extents(sizes, spec->rank, spec->extents) < 0 ||
                   parse_extents(spec->any_rank ? Py_None : strides, spec->rank,
                                 spec->extents + spec->rank) < 0
               ? -1
               : 0;
}

static int prepare_object(PyObject *tuple, Py_ssize_t Py_UNUSED(n_slots), Check *check)
{
    check->operand = Py_NewRef(PyTuple_GET_ITEM(tuple, 1));
    return 0;
}

static int prepare_reference(PyObject *tuple, Py_ssize_t n_slots, Check *check)
{
    if (!PyWeakref_CheckRef(PyTuple_GET_ITEM(tuple, 1))) {
        PyErr_SetString(PyExc_TypeError, "is_alive guard: not a weak reference");
        return -1;
    }
    return prepare_object(tuple, n_slots, check);
}

static int prepare_constant(PyObject *tuple, Py_ssize_t n_slots, Check *check)
{
    if (!is_constant(PyTuple_GET_ITEM(tuple, 1))) {
        PyErr_Format(PyExc_TypeError, "eq guard: %R is not a constant", PyTuple_GET_ITEM(tuple, 1));
        return -1;
    }
    return prepare_object(tuple, n_slots, check);
}

static int prepare_tuple(PyObject *tuple, Py_ssize_t n_slots, Check *check)
{
    if (!PyTuple_Check(PyTuple_GET_ITEM(tuple, 1))) {
        PyErr_Format(PyExc_TypeError, "%U guard: the argument is a tuple", PyTuple_GET_ITEM(tuple, 0));
        return -1;
    }
    return prepare_object(tuple, n_slots, check);
}

static int prepare_pair(PyObject *tuple, Py_ssize_t Py_UNUSED(n_slots), Check *check)
{
    check->operand = PyTuple_GetSlice(tuple, 1, 3);
    return check->operand == NULL ? -1 : 0;
}

static int prepare_content(PyObject *tuple, Py_ssize_t n_slots, Check *check)
{
    if (!PyBytes_Check(PyTuple_GET_ITEM(tuple, 1))) {
        PyErr_SetString(PyExc_TypeError, "content guard: bytes, and a function that compares");
        return -1;
    }
    return prepare_pair(tuple, n_slots, check);
}

static int prepare_number(PyObject *tuple, Py_ssize_t Py_UNUSED(n_slots), Check *check)
{
    check->number = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, 1));
    return check->number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int prepare_slot(PyObject *tuple, Py_ssize_t n_slots, Check *check)
{
    if (prepare_number(tuple, n_slots, check) < 0)
        return -1;
    if (check->number < 0 || check->number >= n_slots) {
        PyErr_Format(PyExc_IndexError, "same_as_slot guard: no slot %zd", check->number);
        return -1;
    }
    return 0;
}

typedef struct {
    const char *name;
    Py_ssize_t n_args;
    int (*prepare)(PyObject *tuple, Py_ssize_t n_slots, Check *check);
    check_fn run;
} CheckKind;

static const CheckKind kinds[N_CHECK_KINDS] = {
    [CHECK_TENSOR] = {"tensor", 8, prepare_tensor, check_tensor},
    [CHECK_TYPE_IS] = {"type_is", 1, prepare_object, check_type_is},
    [CHECK_EQ] = {"eq", 1, prepare_constant, check_eq},
    [CHECK_IS] = {"is", 1, prepare_object, check_is},
    [CHECK_IS_ALIVE] = {"is_alive", 1, prepare_reference, check_is_alive},
    [CHECK_IS_NOT] = {"is_not", 1, prepare_object, check_is_not},
    [CHECK_LEN] = {"len", 1, prepare_number, check_len},
    [CHECK_DICT_KEYS] = {"dict_keys", 1, prepare_tuple, check_dict_keys},
    [CHECK_MISSING_KEY] = {"missing_key", 1, prepare_object, check_missing_key},
    [CHECK_NO_ATTR] = {"no_attr", 1, prepare_object, check_no_attr},
    [CHECK_SAME_AS_SLOT] = {"same_as_slot", 1, prepare_slot, check_same_as_slot},
    [CHECK_PY] = {"py", 1, prepare_object, check_py},
    [CHECK_CONTENT] = {"content", 2, prepare_content, check_content},
    [CHECK_CLASS_ATTRIBUTE] = {"class_attribute", 2, prepare_pair, check_class_attribute},
    [CHECK_CLASS_DATA] = {"class_data", 2, prepare_pair, check_class_data},
    [CHECK_BASES] = {"bases", 1, prepare_tuple, check_bases},
};

static const CheckKind *find_kind(PyObject *name)
{
    for (size_t i = 0; PyUnicode_Check(name) && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (PyUnicode_CompareWithASCIIString(name, kinds[i].name) == 0)
            return &kinds[i];
    PyErr_Format(PyExc_ValueError, "unknown guard kind %R", name);
    return NULL;
}

int check_parse(PyObject *tuple, Py_ssize_t n_slots, Check *check)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) < 2) {
        PyErr_SetString(PyExc_TypeError, "a check is a tuple (kind, *args, guard_id)");
        return -1;
    }
    const CheckKind *kind = find_kind(PyTuple_GET_ITEM(tuple, 0));
    if (kind == NULL)
        return -1;
    Py_ssize_t size = PyTuple_GET_SIZE(tuple);
    if (size != kind->n_args + 2) {
        PyErr_Format(PyExc_TypeError, "%s guard: %zd arguments instead of %zd", kind->name, size - 2,
                     kind->n_args);
        return -1;
    }
    check->kind = (CheckKindId)(kind - kinds);
    check->run = kind->run;
    check->guard_id = Py_NewRef(PyTuple_GET_ITEM(tuple, size - 1));
    return kind->prepare(tuple, n_slots, check);
}

void check_clear(Check *check)
{
    Py_CLEAR(check->operand);
    Py_CLEAR(check->guard_id);
    tensor_spec_free(check->tensor);
    check->tensor = NULL;
}

int check_traverse(const Check *check, visitproc visit, void *arg)
{
    Py_VISIT(check->operand);
    if (check->tensor != NULL)
        Py_VISIT(check->tensor->type);
    return 0;
}
