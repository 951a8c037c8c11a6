/* Memos of guard tree walks: for each recent value of a root, how to tell that nothing has changed.
 *
 * Below a root such as `self` are modules, their dictionaries, and finally parameters: thousands of
 * values, nearly always the same ones as at the last call. The first successful walk records, from the
 * root downwards, the words of memory that prove this; the next call compares them in one loop:
 *
 *   object        its class, and the pointer to its __dict__
 *   dictionary    its version: if it is unchanged, so are all items; otherwise its few guarded items are
 *                 looked up again (a counter in a module changes the version at each call). If CPython
 *                 notifies us of changes, all versions together are one word (dict_versions.c)
 *   class         its version: if it is unchanged, so is what lookups in it give; otherwise it is asked
 *                 again
 *   tensor        what `tensors_look_as` reads: `p.data = ...` changes no dictionary
 *
 * Values without a version (items of lists and tuples, fields of functions, closure cells) are looked
 * up at each call. The memo has borrowed references only: guards must not keep a model alive. This is
 * sound because a word is read only after the words before it proved that its object still exists, and
 * because comparing them runs no Python code. Another object may have the same address: hence the
 * versions, and the checks of what is looked up. Steps that may run Python code (getattr, callables)
 * come last, on values that are held until the end. If anything differs from the memo, the replay
 * answers "unknown", and the tree is walked as if there were no memo.
 */
#include "weft_frame.h"

typedef enum { DICT, WATCHED_DICT, CLASS, PARENT } ContainerKind;

/* A dictionary with its guarded items, a class with its checks, or the parent of a value that is looked up at each call. */
typedef struct {
    ContainerKind kind;
    uint32_t items;   /* where what is expected starts in `items` */
    PyObject *value;
    const Node *node; /* of the dictionary; of the item of a list or a tuple, of the field */
    size_t field;     /* how far from `value` it is; 0: none */
} Container;

/* A guard that may run Python code: a node below `value`, or one check of `value`. */
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

static const uint32_t NO_CONTAINER = UINT32_MAX;

typedef struct {
    ARRAY(Word) at;
    ARRAY(uint32_t) containers; /* for each word, the one to look at when it has changed */
} Words;

struct Memo {
    bool busy;     /* being recorded or replayed: by an outer call, or another thread */
    bool overflow; /* out of memory while recording */
    Words words;
    Words versions;               /* of watched dictionaries; */
    word_t changes;               /* they hold while this is `dict_changes` */
    ARRAY(PyObject *) types;      /* the one thing that is held: what a word means hangs on them */
    ARRAY(Container) containers;
    ARRAY(PyObject *) items;      /* what is guarded in the containers; NULL: nothing */
    ARRAY(SeenTensor) tensors;    /* looked at after the words, which lead to them */
    ARRAY(char) looks;            /* TensorLooks, one after the other; equal ones are shared */
    ARRAY(Late) late;
    ARRAY(Filled) filled;
};

/* The memos of a root, one for each of its most recent values: the layers of a model may take turns. */
enum { MEMOS = 128 };
typedef struct {
    PyObject *value; /* of the root when it was recorded; NULL: nothing recorded */
    Memo *memo;
} Recorded;

struct Memos {
    const Node *root;
    unsigned recordings, replays;
    Py_ssize_t last; /* the index that was used last */
    ARRAY(Recorded) recorded;
};

/* Makes room for `count` more items (or none); NULL if there is no memory. */
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

Memos *memos_new(const Node *root)
{
    Memos *memos = PyMem_Calloc(1, sizeof(Memos));
    if (memos != NULL)
        memos->root = root;
    return memos;
}

static void forget_record(Memo *memo)
{
    Py_ssize_t n = memo->types.n;
    memo->words.at.n = memo->words.containers.n = 0;
    memo->versions.at.n = memo->versions.containers.n = 0;
    memo->types.n = memo->containers.n = memo->items.n = 0;
    memo->tensors.n = memo->looks.n = memo->late.n = memo->filled.n = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        Py_DECREF(memo->types.at[i]);
}

int memos_traverse(const Memos *memos, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; memos != NULL && i < memos->recorded.n; i++) {
        const Memo *memo = memos->recorded.at[i].memo;
        for (Py_ssize_t j = 0; j < memo->types.n; j++)
            Py_VISIT(memo->types.at[j]);
    }
    return 0;
}

static void memo_free(Memo *memo)
{
    forget_record(memo);
    PyMem_Free(memo->words.at.at);
    PyMem_Free(memo->words.containers.at);
    PyMem_Free(memo->versions.at.at);
    PyMem_Free(memo->versions.containers.at);
    PyMem_Free(memo->types.at);
    PyMem_Free(memo->containers.at);
    PyMem_Free(memo->items.at);
    PyMem_Free(memo->tensors.at);
    PyMem_Free(memo->looks.at);
    PyMem_Free(memo->late.at);
    PyMem_Free(memo->filled.at);
    PyMem_Free(memo);
}

void memos_free(Memos *memos)
{
    if (memos == NULL)
        return;
    for (Py_ssize_t i = 0; i < memos->recorded.n; i++)
        memo_free(memos->recorded.at[i].memo);
    PyMem_Free(memos->recorded.at);
    PyMem_Free(memos);
}

/* The memo of the value, or NULL. It is often the same as last time, or the next one. */
static Recorded *find_recorded(Memos *memos, PyObject *value)
{
    Py_ssize_t n = memos->recorded.n, at = memos->last;
    for (Py_ssize_t i = 0; i < n; i++, at++) {
        if (at >= n)
            at = 0;
        if (memos->recorded.at[at].value == value) {
            memos->last = at;
            return &memos->recorded.at[at];
        }
    }
    return NULL;
}

/* ---- recording ----------------------------------------------------------------------------------- */

static void note_contents(Memo *memo, const Node *node, PyObject *value);

/* A place for a new value's memo: a vacant one, or another value's; NULL if there is no memory. */
static Recorded *place_to_record(Memos *memos)
{
    Recorded *vacant = find_recorded(memos, NULL);
    if (vacant != NULL)
        return vacant;
    if (memos->recorded.n == MEMOS) {
        memos->last = (memos->last + 1) % MEMOS;
        return &memos->recorded.at[memos->last];
    }
    Memo *memo = PyMem_Calloc(1, sizeof(Memo));
    Recorded *added = memo == NULL ? NULL : GROW(memos->recorded, 1);
    if (added == NULL)
        PyMem_Free(memo);
    else
        added->memo = memo;
    return added;
}

Memo *memo_start_recording(Memos *memos, PyObject *value)
{
    /* If the structure, or the value itself, changes all the time, recording does not pay. */
    if (memos->recordings > 2 * MEMOS && memos->recordings > memos->replays)
        return NULL;
    Recorded *place = find_recorded(memos, value);
    if (place == NULL)
        place = place_to_record(memos);
    if (place == NULL || place->memo->busy)
        return NULL;
    Memo *memo = place->memo;
    place->value = value;
    memos->recordings++;
    memo->busy = true;
    memo->overflow = false;
    forget_record(memo);
    memo->changes = dict_changes;
    note_contents(memo, memos->root, value); /* the checks of the root are run at each call */
    return memo;
}

void memo_stop_recording(Memos *memos, Memo *memo, bool passed)
{
    memo->busy = false;
    for (Py_ssize_t i = 0; i < memos->recorded.n; i++)
        if (memos->recorded.at[i].memo == memo && (!passed || memo->overflow))
            memos->recorded.at[i].value = NULL;
}

static void note_word_of(Memo *memo, Words *words, Word now, uint32_t container)
{
    Word *word = GROW(words->at, 1);
    uint32_t *index = GROW(words->containers, 1);
    if (word == NULL || index == NULL) {
        memo->overflow = true;
        return;
    }
    *word = now;
    *index = container;
}

static void note_word(Memo *memo, const void *at)
{
    note_word_of(memo, &memo->words, word_now(at), NO_CONTAINER);
}

static void note_late(Memo *memo, PyObject *value, const Node *node, const Check *check)
{
    Late *late = GROW(memo->late, 1);
    if (late == NULL)
        memo->overflow = true;
    else
        *late = (Late){value, node, check};
}

static bool is_held(const Memo *memo, PyTypeObject *type)
{
    for (Py_ssize_t i = memo->types.n - 1; i >= 0; i--)
        if (memo->types.at[i] == (PyObject *)type)
            return true;
    return false;
}

static void note_type(Memo *memo, PyObject *value)
{
    Py_ssize_t n = memo->words.at.n;
    if (n > 0 && memo->words.at.at[n - 1].at == (const word_t *)&value->ob_type)
        return;
    note_word(memo, &value->ob_type);
    if (is_held(memo, Py_TYPE(value)))
        return;
    PyObject **held = GROW(memo->types, 1);
    if (held == NULL)
        memo->overflow = true;
    else
        *held = Py_NewRef((PyObject *)Py_TYPE(value));
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

/* Whether the check depends only on the identity of the object. */
static bool is_settled(const Check *check, PyObject *value)
{
    return check->kind == CHECK_EQ || check->kind == CHECK_IS || check->kind == CHECK_IS_ALIVE ||
           check->kind == CHECK_IS_NOT ||
           (check->kind == CHECK_LEN && PyTuple_CheckExact(value));
}

/* The offset in `looks` of one that equals the last; if there is one, the last is removed. */
static uint32_t shared_look(Memo *memo, size_t size)
{
    enum { TRIES = 64 };
    size_t at = 0, last = (size_t)memo->looks.n - size;
    for (int i = 0; i < TRIES && at < last; i++) {
        const TensorLook *look = (const TensorLook *)(memo->looks.at + at);
        if (tensor_look_size(look->rank) == size && memcmp(look, memo->looks.at + last, size) == 0) {
            memo->looks.n = (Py_ssize_t)last;
            return (uint32_t)at;
        }
        at += tensor_look_size(look->rank);
    }
    return (uint32_t)last;
}

static void note_tensor(Memo *memo, PyObject *value)
{
    TensorMeta meta;
    tensor_read(tensor_impl(value), &meta);
    size_t size = tensor_look_size(meta.rank);
    SeenTensor *tensor = GROW(memo->tensors, 1);
    TensorLook *look = tensor == NULL ? NULL : (TensorLook *)GROW(memo->looks, (Py_ssize_t)size);
    if (look == NULL) {
        memo->overflow = true;
        return;
    }
    tensor_look(value, look);
    *tensor = (SeenTensor){value, tensor_impl(value), autograd_meta(tensor_impl(value)), shared_look(memo, size)};
}

static void note_check(Memo *memo, const Check *check, PyObject *value)
{
    if (is_settled(check, value) || is_dict_check(check, value) || is_class_check(check))
        return;
    if (check->kind == CHECK_TYPE_IS) {
        if (may_change_type(value))
            note_type(memo, value);
    }
    else if (check->kind == CHECK_TENSOR && check->tensor->learned)
        note_tensor(memo, value);
    else if (check->kind == CHECK_LEN && PyList_CheckExact(value))
        note_word(memo, &((PyVarObject *)value)->ob_size);
    else
        note_late(memo, value, NULL, check);
}

/* Whether `node` is an item of a dictionary, covered by the dictionary's version. */
static bool is_plain_item(const Node *node)
{
    return node->accessor == FROM_DICT_ITEM && is_simple_key(node->operand);
}

static const struct {
    PyTypeObject *type;
    const char *name;
    size_t offset;
} fields[] = {
    {&PyCell_Type, "cell_contents", offsetof(PyCellObject, ob_ref)},
    {&PyFunction_Type, "__code__", offsetof(PyFunctionObject, func_code)},
    {&PyFunction_Type, "__defaults__", offsetof(PyFunctionObject, func_defaults)},
    {&PyFunction_Type, "__kwdefaults__", offsetof(PyFunctionObject, func_kwdefaults)},
    {&PyFunction_Type, "__closure__", offsetof(PyFunctionObject, func_closure)},
    {&PyMethod_Type, "__func__", offsetof(PyMethodObject, im_func)},
    {&PyMethod_Type, "__self__", offsetof(PyMethodObject, im_self)},
};

/* The offset of `__name__` or `__qualname__` in a class of the program; 0: only Python can read it. */
static size_t name_field(PyObject *name, PyTypeObject *type)
{
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE))
        return 0;
    if (PyUnicode_CompareWithASCIIString(name, "__name__") == 0)
        return offsetof(PyHeapTypeObject, ht_name);
    bool qualified = PyUnicode_CompareWithASCIIString(name, "__qualname__") == 0;
    return qualified ? offsetof(PyHeapTypeObject, ht_qualname) : 0;
}

/* The offset of the attribute in a function, method, cell or class; 0: only Python can read it. */
static size_t field_at(const Node *node, PyObject *parent)
{
    if (node->accessor != FROM_ATTR || !PyUnicode_Check(node->operand))
        return 0;
    if (Py_IS_TYPE(parent, &PyType_Type))
        return name_field(node->operand, (PyTypeObject *)parent);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (Py_IS_TYPE(parent, fields[i].type) &&
            PyUnicode_CompareWithASCIIString(node->operand, fields[i].name) == 0)
            return fields[i].offset;
    return 0;
}

/* Makes room for the `count` items of a container, and records its word. */
static PyObject **note_container(Memo *memo, const Node *node, PyObject *value, Py_ssize_t count,
                                 ContainerKind kind, Word word)
{
    uint32_t index = (uint32_t)memo->containers.n, first = (uint32_t)memo->items.n;
    Container *container = GROW(memo->containers, 1);
    PyObject **items = container == NULL ? NULL : GROW(memo->items, count);
    if (items == NULL)
        memo->overflow = true;
    else
        *container = (Container){kind, first, value, node, kind == PARENT ? field_at(node, value) : 0};
    note_word_of(memo, kind == WATCHED_DICT ? &memo->versions : &memo->words, word, index);
    return items;
}

/* Records a dictionary: its version covers its guarded items, whose own words the caller records. */
static void note_dict(Memo *memo, const Node *node, PyObject *value)
{
    bool watched;
    Word version = dict_version(value, &watched);
    PyObject **items = note_container(memo, node, value, node->n_children,
                                      watched ? WATCHED_DICT : DICT, version);
    for (Py_ssize_t i = 0; items != NULL && i < node->n_children; i++)
        if (is_plain_item(&node->children[i]))
            items[i] = PyDict_GetItemWithError(value, node->children[i].operand);
    PyErr_Clear();
}

static void note_item(Memo *memo, const Node *node, PyObject *parent, PyObject *value)
{
    PyObject **item = note_container(memo, node, parent, 1, PARENT, ALWAYS_CHANGED);
    if (item != NULL)
        *item = value;
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

static bool has_class_guards(const Node *node)
{
    for (Py_ssize_t i = 0; i < node->n_checks; i++)
        if (is_class_check(&node->checks[i]))
            return true;
    return false;
}

/* Records the words of a value itself. */
static void note_contents(Memo *memo, const Node *node, PyObject *value)
{
    if (PyDict_Check(value) && has_dict_guards(node, value))
        note_dict(memo, node, value);
    else if (PyType_Check(value) && has_class_guards(node))
        note_container(memo, node, value, 0, CLASS, class_version(value));
}

/* The place of the pointer to an object's dictionary, or NULL. */
static PyObject **dict_pointer(PyObject *object, PyObject *dict)
{
    PyObject **pointer = _PyObject_GetDictPtr(object);
    return pointer != NULL && *pointer == dict ? pointer : NULL;
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
    case FROM_OBJECT:
    case FROM_ALIVE:
        return false;
    default:
        return field_at(node, parent) == 0;
    }
}

/* Records the words by which the parent refers to the value. */
static void note_link(Memo *memo, const Node *node, PyObject *parent, PyObject *value)
{
    switch (node->accessor) {
    case FROM_INSTANCE_DICT:
        note_type(memo, parent);
        note_word(memo, dict_pointer(parent, value));
        break;
    case FROM_LIST_ITEM:
    case FROM_TUPLE_ITEM:
    case FROM_ATTR: /* a field */
        note_item(memo, node, parent, value);
        break;
    case FROM_TYPE:
        note_type(memo, parent);
        break;
    default: /* a dictionary's item: see note_dict; a fixed object */
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

/* The checks of a value that run no Python code. */
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

/* Whether the guarded items of a changed dictionary are still the same. */
static bool dict_holds(const Node *node, PyObject *dict, PyObject *const *items)
{
    if (!simple_checks_hold(node, dict))
        return false;
    for (Py_ssize_t i = 0; i < node->n_children; i++) {
        const Node *child = &node->children[i];
        if (items[i] == NULL)
            continue;
        if (PyDict_GetItemWithError(dict, child->operand) != items[i] ||
            !simple_checks_hold(child, items[i]))
            return false;
    }
    return true;
}

/* The current item of a list or tuple, or the field; NULL if it does not exist any more. */
static PyObject *present_item(const Container *container)
{
    const Node *node = container->node;
    PyObject *parent = container->value;
    Py_ssize_t index = node->number;
    if (container->field != 0) {
        PyObject *found = *(PyObject **)((char *)parent + container->field);
        return found == NULL && !PyCell_Check(parent) ? Py_None : found; /* no defaults, no closure */
    }
    if (node->accessor == FROM_LIST_ITEM)
        return PyList_Check(parent) && index < PyList_GET_SIZE(parent)
                   ? PyList_GET_ITEM(parent, index)
                   : NULL;
    return PyTuple_Check(parent) && index < PyTuple_GET_SIZE(parent)
               ? PyTuple_GET_ITEM(parent, index)
               : NULL;
}

static bool item_holds(const Container *container, PyObject *expected)
{
    return present_item(container) == expected && simple_checks_hold(container->node, expected);
}

/* Whether lookups in a changed class give what they gave; also gives it a version again. */
static bool class_holds(const Node *node, PyObject *cls)
{
    for (Py_ssize_t i = 0; i < node->n_checks; i++)
        if (is_class_check(&node->checks[i]) && node->checks[i].run(&node->checks[i], cls, NULL) != 1)
            return false;
    return true;
}

static bool content_holds(const Container *container, PyObject *const *items, const Word *word)
{
    if (container->kind == CLASS)
        return class_holds(container->node, container->value);
    return (container->kind != WATCHED_DICT || dict_is_watched(word->at, container->value)) &&
           dict_holds(container->node, container->value, items);
}

/* The word of a class that has a version; a zero is none. */
static Word word_again(const Container *container, const Word *word)
{
    return container->kind == CLASS ? class_version(container->value) : word_now(word->at);
}

/* Whether the guarded content of the container with a changed word is as before. */
static bool container_holds(const Memo *memo, uint32_t index, Word *word)
{
    if (index == NO_CONTAINER)
        return false;
    const Container *container = &memo->containers.at[index];
    PyObject *const *items = &memo->items.at[container->items];
    if (container->kind == PARENT)
        return item_holds(container, *items);
    if (!content_holds(container, items, word))
        return false;
    if (word->at != ALWAYS_CHANGED.at || container->kind == CLASS)
        *word = word_again(container, word);
    return true;
}

static bool words_hold(const Memo *memo, Words *words)
{
    Word *at = words->at.at;
    Py_ssize_t n = words->at.n;
    for (Py_ssize_t i = first_changed(at, 0, n); i < n; i = first_changed(at, i + 1, n)) {
        if (!container_holds(memo, words->containers.at[i], &at[i])) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

static bool structure_holds(Memo *memo)
{
    if (memo->changes != dict_changes && !words_hold(memo, &memo->versions))
        return false;
    memo->changes = dict_changes;
    return words_hold(memo, &memo->words);
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

int memo_replay(Memos *memos, Walk *walk, PyObject *value)
{
    Recorded *found = find_recorded(memos, value);
    Memo *memo = found == NULL ? NULL : found->memo;
    if (memo == NULL || memo->busy)
        return 0;
    if (!structure_holds(memo) ||
        !tensors_look_as(memo->tensors.at, memo->tensors.n, memo->looks.at)) {
        found->value = NULL; /* the walk that follows records it again */
        return 0;
    }
    for (Py_ssize_t i = 0; i < memo->filled.n; i++) {
        const Filled *filled = &memo->filled.at[i];
        Py_XSETREF(walk->slots[filled->slot], Py_NewRef(filled->value));
    }
    memos->replays++;
    if (memo->late.n == 0)
        return 1;
    memo->busy = true;
    int passed = run_late(memo, walk);
    memo->busy = false;
    return passed;
}
