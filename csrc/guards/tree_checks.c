/* The checks of a whole guard tree: global modes, objects that must be different, relations between
 * sizes, functions that must not have changed.
 *
 * A kind is a function that checks the list of collected values, and its lines in `tree_check_parse`.
 * Those marked `first` run before the walk, the others after it.
 */
#include "weft_frame.h"

static int tree_global_state(const TreeCheck *check, PyObject *Py_UNUSED(collected))
{
    return global_state_matches(check->operand);
}

/* As below, for many slots: 1, 0 or -1. */
static int many_distinct(const TreeCheck *check, PyObject *const *slots)
{
    size_t room = 64, count = (size_t)check->n_numbers;
    while (room < 2 * count)
        room *= 2;
    PyObject **table = PyMem_Calloc(room, sizeof(PyObject *));
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int distinct = 1;
    for (size_t i = 0; i < count && distinct; i++) {
        PyObject *object = slots[check->numbers[i]];
        size_t at = ((uintptr_t)object >> 4) * 0x9E3779B97F4A7C15u >> 16;
        while (table[at & (room - 1)] != NULL && table[at & (room - 1)] != object)
            at++;
        distinct = table[at & (room - 1)] == NULL;
        table[at & (room - 1)] = object;
    }
    PyMem_Free(table);
    return distinct;
}

static int tree_distinct(const TreeCheck *check, PyObject *collected)
{
    PyObject **slots = ((PyListObject *)collected)->ob_item;
    if (check->n_numbers > 16)
        return many_distinct(check, slots);
    for (Py_ssize_t i = 1; i < check->n_numbers; i++)
        for (Py_ssize_t j = 0; j < i; j++)
            if (slots[check->numbers[i]] == slots[check->numbers[j]])
                return 0;
    return 1;
}

static int tree_shape(const TreeCheck *check, PyObject *collected)
{
    if (check->program != NULL)
        return shape_program_run(check->program, ((PyListObject *)collected)->ob_item);
    return predicate_holds(check->operand, collected);
}

/* The functions have the same code and defaults as when they were captured. */
static int tree_functions(const TreeCheck *check, PyObject *Py_UNUSED(collected))
{
    return first_changed(check->words, 0, check->n_words) == check->n_words;
}

/* ---- parsing ------------------------------------------------------------------------------------ */

static int parse_slots(PyObject *slots, Py_ssize_t n_slots, TreeCheck *check)
{
    PyObject *fast = PySequence_Tuple(slots);
    if (fast == NULL)
        return -1;
    Py_ssize_t n = PyTuple_GET_SIZE(fast);
    check->numbers = PyMem_Calloc((size_t)n + 1, sizeof(Py_ssize_t));
    for (Py_ssize_t i = 0; check->numbers != NULL && i < n; i++) {
        Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GET_ITEM(fast, i));
        if (slot < 0 || slot >= n_slots) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_IndexError, "distinct guard: no slot %zd", slot);
            break;
        }
        check->numbers[check->n_numbers++] = slot;
    }
    Py_DECREF(fast);
    if (check->numbers == NULL)
        PyErr_NoMemory();
    return PyErr_Occurred() ? -1 : 0;
}

enum { FUNCTION_WORDS = 4 };

/* Holds (in `operand`) what the words point to, or another object could get the same address. The
 * function itself, or a weak reference to it if the walk before this check has proved it alive. */
static int add_function(PyObject *given, TreeCheck *check)
{
    PyObject *alive = PyWeakref_CheckRef(given) ? ((PyWeakReference *)given)->wr_object : given;
    if (!PyFunction_Check(alive))
        return PyErr_SetString(PyExc_TypeError, "functions guard: not a function"), -1;
    PyFunctionObject *function = (PyFunctionObject *)alive;
    PyObject *parts[] = {function->func_code, function->func_defaults, function->func_kwdefaults};
    if (PyList_Append(check->operand, given) < 0)
        return -1;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (parts[i] != NULL && PyList_Append(check->operand, parts[i]) < 0)
            return -1;
    Word *words = &check->words[check->n_words];
    *words++ = word_now(&function->func_code);
    *words++ = word_now(&function->func_defaults);
    *words++ = word_now(&function->func_kwdefaults);
    bool watched;
    if (function->func_kwdefaults != NULL)
        *words++ = dict_version(function->func_kwdefaults, &watched);
    check->n_words = words - check->words;
    return 0;
}

static int parse_functions(PyObject *functions, TreeCheck *check)
{
    Py_ssize_t n = PyTuple_GET_SIZE(functions);
    check->words = PyMem_Calloc((size_t)(FUNCTION_WORDS * n) + 1, sizeof(Word));
    check->operand = PyList_New(0);
    if (check->words == NULL || check->operand == NULL)
        return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (add_function(PyTuple_GET_ITEM(functions, i), check) < 0)
            return -1;
    }
    return 0;
}

int tree_check_parse(PyObject *tuple, Py_ssize_t n_slots, TreeCheck *check)
{
    Py_ssize_t size = PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : 0;
    PyObject *kind = size >= 2 ? PyTuple_GET_ITEM(tuple, 0) : NULL;
    if (kind == NULL || !PyUnicode_Check(kind) || size > 3)
        return PyErr_SetString(PyExc_TypeError, "a tree check is a tuple (kind, *args, id)"), -1;
    PyObject *operand = size == 3 ? PyTuple_GET_ITEM(tuple, 1) : NULL;
    check->guard_id = Py_NewRef(PyTuple_GET_ITEM(tuple, size - 1));
    if (PyUnicode_CompareWithASCIIString(kind, "global_state") == 0) {
        check->first = true;
        check->run = tree_global_state;
        if (operand != NULL && !Py_IS_TYPE(operand, GlobalState_Type))
            return PyErr_SetString(PyExc_TypeError, "global_state guard: not a GlobalState"), -1;
        check->operand = operand != NULL ? Py_NewRef(operand) : global_state_now();
        return check->operand == NULL ? -1 : 0;
    }
    if (operand != NULL && PyUnicode_CompareWithASCIIString(kind, "distinct") == 0) {
        check->run = tree_distinct;
        return parse_slots(operand, n_slots, check);
    }
    if (operand != NULL && PyTuple_Check(operand) &&
        PyUnicode_CompareWithASCIIString(kind, "functions") == 0) {
        check->run = tree_functions;
        return parse_functions(operand, check);
    }
    if (operand != NULL && PyUnicode_CompareWithASCIIString(kind, "shape") == 0) {
        check->run = tree_shape;
        check->operand = Py_NewRef(operand);
        if (PyTuple_Check(operand))
            check->program = shape_program_parse(operand, n_slots);
        else if (!PyCallable_Check(operand))
            PyErr_SetString(PyExc_TypeError, "shape guard: neither a program nor callable");
        return PyErr_Occurred() ? -1 : 0;
    }
    PyErr_Format(PyExc_ValueError, "unknown tree check %R", tuple);
    return -1;
}

void tree_check_clear(TreeCheck *check)
{
    Py_CLEAR(check->operand);
    Py_CLEAR(check->guard_id);
    PyMem_Free(check->numbers);
    PyMem_Free(check->program);
    PyMem_Free(check->words);
}
