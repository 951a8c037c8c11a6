/* What need not be walked again: the memo of a root of the guard tree.
 *
 * Below a root such as `self` lie modules, their dictionaries, and in the end parameters: thousands of
 * values, nearly always the same ones as at the last call. The first successful walk records what it
 * saw; the next call replays the record. A replay goes from the root downwards and makes sure, step by
 * step, that the same objects are still in the same places:
 *
 *   dictionary    its version is unchanged, so all its items are; else its few guarded items are looked
 *                 up again (a counter kept in a module changes the version at each call)
 *   object        its __dict__ is the same dictionary, its class the same class
 *   list, tuple   the guarded item is the same object, its checks hold; a closure's cell likewise
 *   tensor        it looks as it did, by direct reads: `p.data = ...` changes no dictionary
 *
 * The record refers to what it saw without holding it (guards must not keep a model alive). That is
 * sound because a reference is used only after the step above it proved that the object is still
 * there, and because replaying these steps runs no Python code. Steps that may run Python code
 * (getattr, callables) are done last, on values held until the end. Whatever is not as recorded makes
 * the replay answer "unknown", and the tree is walked as if there were no memo.
 */
#include "weft_frame.h"

typedef enum { STEP_TYPE, STEP_OBJECT, STEP_DICT, STEP_ITEM, STEP_LENGTH } StepKind;

/* One thing to make sure of. */
typedef struct {
    uint32_t kind;         /* StepKind */
    union {
        uint32_t items;    /* DICT: where its items start in `items` */
        int32_t dict_at;   /* OBJECT: how far from `value` it keeps its __dict__ */
    };
    PyObject *value;       /* the object that is looked at */
    union {
        PyTypeObject *type;      /* TYPE, OBJECT */
        const Node *node;        /* DICT, ITEM */
        const Check *check;      /* LENGTH */
    };
    union {
        PyObject *expected;      /* OBJECT: its __dict__; ITEM */
        uint64_t version;        /* DICT */
    };
} Step;

/* A guard that may run Python code: a whole node below `value`, or one check of `value`. */
typedef struct {
    PyObject *value;
    const Node *node;   /* walk it; or NULL: */
    const Check *check; /* run it */
} Late;

typedef struct {
    Py_ssize_t slot;
    PyObject *value;
} Filled;

#define ARRAY(type) \
    struct { \
        type *at; \
        Py_ssize_t n, room; \
    }

struct Memo {
    const Node *root;
    PyObject *value;   /* of the root when it was recorded; NULL: nothing recorded */
    bool busy;         /* being recorded or replayed: by an outer call, or another thread */
    unsigned failures, successes;
    ARRAY(Step) steps;
    ARRAY(PyObject *) items;
    ARRAY(TensorSnapshot) tensors; /* looked at after the steps, which lead to them */
    ARRAY(int64_t) extents;        /* of the tensors, one after the other */
    ARRAY(Late) late;
    ARRAY(Filled) filled;
    bool overflow;     /* out of memory while recording */
};

/* Makes room for `count` more (also none); NULL when there is no memory. */
static void *array_grow(void **at, Py_ssize_t *n, Py_ssize_t *room, Py_ssize_t count, size_t size)
{
    if (*n + count > *room || *at == NULL) {
        Py_ssize_t wanted = 2 * *room + count + 8;
        void *grown = PyMem_Realloc(*at, (size_t)wanted * size);
        if (grown == NULL)
            return NULL;
        *at = grown;
        *room = wanted;
    }
    void *first = (char *)*at + (size_t)*n * size;
    memset(first, 0, (size_t)count * size);
    *n += count;
    return first;
}

#define GROW(array, count) \
    array_grow((void **)&(array).at, &(array).n, &(array).room, count, sizeof(*(array).at))

/* ---- the life of a memo -------------------------------------------------------------------------- */

static bool reads_containers(const Node *root)
{
    for (Py_ssize_t i = 0; i < root->n_children; i++) {
        AccessorId from = root->children[i].accessor;
        if (from == FROM_INSTANCE_DICT || from == FROM_DICT_ITEM || from == FROM_LIST_ITEM ||
            from == FROM_TUPLE_ITEM || root->accessor == FROM_CELL_OBJECT)
            return true;
    }
    return false;
}

Memo *memo_new(const Node *root)
{
    if (!reads_containers(root))
        return NULL;
    Memo *memo = PyMem_Calloc(1, sizeof(Memo));
    if (memo != NULL)
        memo->root = root;
    return memo;
}

/* Types are the one thing that the record holds: the layout of what has that type hangs on them. */
static bool holds_type(const Step *step)
{
    return step->kind == STEP_TYPE || step->kind == STEP_OBJECT;
}

static void forget_record(Memo *memo)
{
    Py_ssize_t n = memo->steps.n;
    memo->value = NULL;
    memo->steps.n = memo->items.n = memo->late.n = memo->filled.n = 0;
    memo->tensors.n = memo->extents.n = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (holds_type(&memo->steps.at[i]))
            Py_XDECREF((PyObject *)memo->steps.at[i].type);
}

int memo_traverse(const Memo *memo, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; memo != NULL && i < memo->steps.n; i++)
        if (holds_type(&memo->steps.at[i]))
            Py_VISIT(memo->steps.at[i].type);
    return 0;
}

void memo_free(Memo *memo)
{
    if (memo == NULL)
        return;
    forget_record(memo);
    PyMem_Free(memo->steps.at);
    PyMem_Free(memo->items.at);
    PyMem_Free(memo->tensors.at);
    PyMem_Free(memo->extents.at);
    PyMem_Free(memo->late.at);
    PyMem_Free(memo->filled.at);
    PyMem_Free(memo);
}

/* ---- recording ----------------------------------------------------------------------------------- */

static void note_root(Memo *memo, PyObject *value);

bool memo_start_recording(Memo *memo, PyObject *value)
{
    /* Where the structure changes all the time, recording it is a loss. */
    if (memo->busy || (memo->failures > 16 && memo->failures > memo->successes))
        return false;
    memo->busy = true;
    memo->overflow = false;
    forget_record(memo);
    note_root(memo, value);
    return true;
}

void memo_stop_recording(Memo *memo, bool passed)
{
    memo->busy = false;
    if (!passed || memo->overflow)
        memo->value = NULL;
}

static Step *note_step(Memo *memo, StepKind kind, PyObject *value)
{
    static Step nowhere; /* what is written there is never read */
    Step *step = GROW(memo->steps, 1);
    if (step == NULL) {
        memo->overflow = true;
        return &nowhere;
    }
    step->kind = kind;
    step->value = value;
    return step;
}

static void note_late(Memo *memo, PyObject *value, const Node *node, const Check *check)
{
    Late *late = GROW(memo->late, 1);
    if (late == NULL)
        memo->overflow = true;
    else
        *late = (Late){value, node, check};
}

/* The step that makes sure of the value's type. */
static Step *note_type(Memo *memo, PyObject *value)
{
    Step *last = memo->steps.n > 0 ? &memo->steps.at[memo->steps.n - 1] : NULL;
    if (last != NULL && last->kind == STEP_TYPE && last->value == value)
        return last;
    Step *step = note_step(memo, STEP_TYPE, value);
    if (!memo->overflow)
        step->type = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(value));
    return step;
}

/* The class of an object can be changed, but not that of an int, a list, ... */
static bool may_change_type(PyObject *value)
{
    return PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) || PyModule_Check(value);
}

/* Keys whose comparison runs no Python code. */
static bool is_simple_key(PyObject *key)
{
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key);
}

static bool has_simple_keys(PyObject *keys)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++)
        if (!is_simple_key(PyTuple_GET_ITEM(keys, i)))
            return false;
    return true;
}

/* Whether the check is decided by the contents of a dictionary alone. */
static bool is_dict_check(const Check *check, PyObject *value)
{
    if (!PyDict_Check(value))
        return false;
    return check->kind == CHECK_LEN ||
           (check->kind == CHECK_MISSING_KEY && is_simple_key(check->operand)) ||
           (check->kind == CHECK_DICT_KEYS && has_simple_keys(check->operand));
}

/* Whether the check depends on nothing but which object it is, for as long as it lives. */
static bool is_settled(const Check *check, PyObject *value)
{
    return check->kind == CHECK_EQ || check->kind == CHECK_IS || check->kind == CHECK_IS_NOT ||
           (check->kind == CHECK_LEN && PyTuple_CheckExact(value));
}

static void note_tensor(Memo *memo, PyObject *value)
{
    TensorSnapshot *snapshot = GROW(memo->tensors, 1);
    if (snapshot != NULL)
        tensor_snapshot(value, snapshot, NULL);
    int64_t *extents = snapshot != NULL ? GROW(memo->extents, 2 * snapshot->rank) : NULL;
    if (extents == NULL)
        memo->overflow = true;
    else
        tensor_snapshot(value, snapshot, extents);
}

static void note_check(Memo *memo, const Check *check, PyObject *value)
{
    if (is_settled(check, value) || is_dict_check(check, value))
        return;
    if (check->kind == CHECK_TYPE_IS) {
        if (may_change_type(value))
            note_type(memo, value);
    }
    else if (check->kind == CHECK_TENSOR && check->tensor->learned)
        note_tensor(memo, value);
    else if (check->kind == CHECK_LEN && PyList_CheckExact(value))
        note_step(memo, STEP_LENGTH, value)->check = check;
    else
        note_late(memo, value, NULL, check);
}

/* Whether `node` is an item that a dictionary's version vouches for. */
static bool is_plain_item(const Node *node)
{
    return node->accessor == FROM_DICT_ITEM && is_simple_key(node->operand);
}

/* `value` is a dictionary: its version stands for its guarded items, which are noted by the caller as
 * they are looked up, in the order of the children. */
static void note_dict(Memo *memo, const Node *node, PyObject *value)
{
    Step *step = note_step(memo, STEP_DICT, value);
    step->node = node;
    step->version = dict_version(value);
    step->items = (uint32_t)memo->items.n;
    PyObject **items = GROW(memo->items, node->n_children);
    if (items == NULL) {
        memo->overflow = true;
        return;
    }
    for (Py_ssize_t i = 0; i < node->n_children; i++)
        if (is_plain_item(&node->children[i]))
            items[i] = PyDict_GetItemWithError(value, node->children[i].operand);
    PyErr_Clear();
}

static bool has_dict_guards(const Node *node, PyObject *value)
{
    for (Py_ssize_t i = 0; i < node->n_checks; i++)
        if (is_dict_check(&node->checks[i], value))
            return true;
    for (Py_ssize_t i = 0; i < node->n_children; i++)
        if (is_plain_item(&node->children[i]))
            return true;
    return false;
}

/* What is true of a value itself, wherever it came from. */
static void note_contents(Memo *memo, const Node *node, PyObject *value)
{
    if (PyDict_Check(value) && has_dict_guards(node, value))
        note_dict(memo, node, value);
}

static void note_root(Memo *memo, PyObject *value)
{
    memo->value = value;
    note_contents(memo, memo->root, value); /* the checks of the root are run at each call */
}

/* Where the dictionary pointer of an object is, if it has one. */
static PyObject **dict_pointer(PyObject *object, PyObject *dict)
{
    PyObject **pointer = _PyObject_GetDictPtr(object);
    return pointer != NULL && *pointer == dict ? pointer : NULL;
}

static bool is_cell_contents(const Node *node, PyObject *parent)
{
    return node->accessor == FROM_ATTR && PyCell_Check(parent) && PyUnicode_Check(node->operand) &&
           PyUnicode_CompareWithASCIIString(node->operand, "cell_contents") == 0;
}

bool memo_is_replayed_by_walking(const Node *node, PyObject *parent, PyObject *value)
{
    switch (node->accessor) {
    case FROM_INSTANCE_DICT:
        return dict_pointer(parent, value) == NULL;
    case FROM_DICT_ITEM:
        return !is_plain_item(node);
    case FROM_LIST_ITEM:
    case FROM_TUPLE_ITEM:
    case FROM_TYPE:
        return false;
    default:
        return !is_cell_contents(node, parent);
    }
}

/* How the value hangs on its parent. */
static void note_link(Memo *memo, const Node *node, PyObject *parent, PyObject *value)
{
    Step *step;
    switch (node->accessor) {
    case FROM_INSTANCE_DICT:
        step = note_type(memo, parent);
        step->kind = STEP_OBJECT;
        step->dict_at = (int32_t)((char *)dict_pointer(parent, value) - (char *)parent);
        step->expected = value;
        break;
    case FROM_LIST_ITEM:
    case FROM_TUPLE_ITEM:
    case FROM_ATTR: /* the contents of a cell */
        step = note_step(memo, STEP_ITEM, parent);
        step->node = node;
        step->expected = value;
        break;
    case FROM_TYPE:
        note_type(memo, parent);
        break;
    default: /* a dictionary's item: see note_dict */
        break;
    }
}

void memo_note(Memo *memo, const Node *node, PyObject *parent, PyObject *value)
{
    if (memo_is_replayed_by_walking(node, parent, value)) {
        note_late(memo, parent, node, NULL);
        return;
    }
    note_link(memo, node, parent, value);
    for (Py_ssize_t i = 0; i < node->n_checks; i++)
        note_check(memo, &node->checks[i], value);
    note_contents(memo, node, value);
    if (node->slot >= 0) {
        Filled *filled = GROW(memo->filled, 1);
        if (filled == NULL)
            memo->overflow = true;
        else
            *filled = (Filled){node->slot, value};
    }
}

/* ---- replaying ----------------------------------------------------------------------------------- */

/* The checks of a value that run no Python code; the others have steps of their own. */
static bool simple_checks_hold(const Node *node, PyObject *value)
{
    for (Py_ssize_t i = 0; i < node->n_checks; i++) {
        const Check *check = &node->checks[i];
        bool simple = check->kind == CHECK_TYPE_IS || is_settled(check, value) ||
                      is_dict_check(check, value);
        if (simple && check->run(check, value, NULL) != 1)
            return false;
    }
    return true;
}

/* A dictionary that was changed: are its guarded items still the same? */
static bool dict_holds(const Memo *memo, Step *step)
{
    PyObject *dict = step->value;
    const Node *node = step->node;
    if (!simple_checks_hold(node, dict))
        return false;
    for (Py_ssize_t i = 0; i < node->n_children; i++) {
        const Node *child = &node->children[i];
        PyObject *expected = memo->items.at[step->items + i];
        if (expected == NULL)
            continue;
        if (PyDict_GetItemWithError(dict, child->operand) != expected ||
            !simple_checks_hold(child, expected))
            return false;
    }
    step->version = dict_version(dict);
    return true;
}

/* The item of a list or tuple, or the contents of a cell; NULL: there is none any more. */
static PyObject *present_item(const Node *node, PyObject *parent)
{
    Py_ssize_t index = node->number;
    if (node->accessor == FROM_LIST_ITEM)
        return PyList_Check(parent) && index < PyList_GET_SIZE(parent)
                   ? PyList_GET_ITEM(parent, index)
                   : NULL;
    if (node->accessor == FROM_TUPLE_ITEM)
        return PyTuple_Check(parent) && index < PyTuple_GET_SIZE(parent)
                   ? PyTuple_GET_ITEM(parent, index)
                   : NULL;
    return PyCell_Check(parent) ? PyCell_GET(parent) : NULL;
}

static bool item_holds(const Step *step)
{
    PyObject *found = present_item(step->node, step->value);
    return found != NULL && found == step->expected && simple_checks_hold(step->node, found);
}

static bool step_holds(const Memo *memo, Step *step)
{
    switch ((StepKind)step->kind) {
    case STEP_TYPE:
        return Py_TYPE(step->value) == step->type;
    case STEP_OBJECT:
        return Py_TYPE(step->value) == step->type &&
               *(PyObject **)((char *)step->value + step->dict_at) == step->expected;
    case STEP_DICT: /* dictionaries stay dictionaries */
        return (step->version != 0 && dict_version(step->value) == step->version) ||
               dict_holds(memo, step);
    case STEP_ITEM:
        return item_holds(step);
    case STEP_LENGTH:
        return PyList_CheckExact(step->value) &&
               PyList_GET_SIZE(step->value) == step->check->number;
    }
    return false;
}

/* Modules lie all over the memory: ask for their cache lines before they are needed. */
static inline void prefetch(const Step *step)
{
    const char *value = (const char *)step->value;
    __builtin_prefetch(value + offsetof(PyObject, ob_type));
    __builtin_prefetch(value + (step->kind == STEP_OBJECT ? step->dict_at : DICT_VERSION_AT));
}

static bool steps_hold(Memo *memo)
{
    enum { AHEAD = 8 };
    for (Py_ssize_t i = 0; i < memo->steps.n; i++) {
        if (i + AHEAD < memo->steps.n)
            prefetch(&memo->steps.at[i + AHEAD]);
        if (!step_holds(memo, &memo->steps.at[i])) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

static int run_late(Memo *memo, Walk *walk)
{
    int passed = 1;
    for (Py_ssize_t i = 0; i < memo->late.n; i++)
        Py_INCREF(memo->late.at[i].value);
    for (Py_ssize_t i = 0; i < memo->late.n && passed == 1; i++) {
        const Late *late = &memo->late.at[i];
        passed = late->node != NULL ? walk_node(walk, late->node, late->value)
                                    : late->check->run(late->check, late->value, walk->slots);
    }
    for (Py_ssize_t i = 0; i < memo->late.n; i++)
        Py_DECREF(memo->late.at[i].value);
    return passed;
}

int memo_replay(Memo *memo, Walk *walk, PyObject *value)
{
    if (memo->value != value || memo->busy)
        return 0;
    if (!steps_hold(memo) || !tensors_look_as(memo->tensors.at, memo->tensors.n, memo->extents.at)) {
        memo->value = NULL; /* recorded anew by the walk that follows */
        memo->failures++;
        return 0;
    }
    for (Py_ssize_t i = 0; i < memo->filled.n; i++) {
        const Filled *filled = &memo->filled.at[i];
        Py_XSETREF(walk->slots[filled->slot], Py_NewRef(filled->value));
    }
    memo->successes++;
    if (memo->late.n == 0)
        return 1;
    memo->busy = true;
    int passed = run_late(memo, walk);
    memo->busy = false;
    return passed;
}
