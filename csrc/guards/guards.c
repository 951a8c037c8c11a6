/* GuardTree: everything that must hold for a captured frame to be used again, checked in one walk.
 *
 * A node reads a value from its parent's value (its accessor), runs its checks on it, stores it in a
 * slot of the collected list if the replacement needs it, and continues with its children: each source
 * of the captured program is read once. After the walk come the checks of the whole tree: global modes,
 * objects that must be different, relations between sizes. References to values are held during their
 * checks, because a check may run Python code.
 */
#include "weft_frame.h"

typedef struct {
    PyObject_HEAD
    Py_ssize_t n_slots, n_nodes, n_tree_checks;
    Node *nodes;
    Node fixed; /* parent of the last nodes, which are fixed objects and share one memo */
    TreeCheck *tree_checks;
    SeenSizes *seen; /* NULL: no check is a shape program */
} GuardTree;

PyTypeObject *GuardTree_Type;

/* ---- accessors ---------------------------------------------------------------------------------- */

#define ACCESS(name) \
    static PyObject *name(const Node *node, PyObject *parent, const FrameValues *frame)
#define UNUSED_PARENT (void)parent
#define UNUSED_FRAME (void)frame
#define UNUSED_NODE (void)node

ACCESS(access_local)
{
    UNUSED_PARENT;
    return node->number < frame->n_locals ? Py_XNewRef(frame->locals[node->number]) : NULL;
}

ACCESS(access_cell_object)
{
    UNUSED_PARENT;
    PyObject *cells = frame->closure;
    if (cells == NULL || !PyTuple_Check(cells) || node->number >= PyTuple_GET_SIZE(cells))
        return NULL;
    return Py_NewRef(PyTuple_GET_ITEM(cells, node->number));
}

ACCESS(access_cell)
{
    PyObject *cell = access_cell_object(node, parent, frame);
    PyObject *value = cell != NULL && PyCell_Check(cell) ? PyCell_Get(cell) : NULL;
    Py_XDECREF(cell);
    return value;
}

static PyObject *dict_lookup(PyObject *dict, PyObject *key)
{
    return PyDict_Check(dict) ? Py_XNewRef(PyDict_GetItemWithError(dict, key)) : NULL;
}

ACCESS(access_global)
{
    UNUSED_PARENT;
    return dict_lookup(frame->globals, node->operand);
}

ACCESS(access_builtin)
{
    UNUSED_PARENT;
    PyObject *builtins = PyDict_GetItemString(frame->globals, "__builtins__");
    if (builtins == NULL)
        builtins = PyEval_GetBuiltins();
    else if (PyModule_Check(builtins))
        builtins = PyModule_GetDict(builtins);
    return dict_lookup(builtins, node->operand);
}

ACCESS(access_object)
{
    UNUSED_PARENT;
    UNUSED_FRAME;
    return Py_NewRef(node->operand);
}

/* The object of a weak reference. That the frame refers to it was checked before. */
ACCESS(access_alive)
{
    UNUSED_PARENT;
    UNUSED_FRAME;
    PyObject *object = ((PyWeakReference *)node->operand)->wr_object;
    return object == Py_None ? NULL : Py_NewRef(object);
}

ACCESS(access_attr)
{
    UNUSED_FRAME;
    return PyObject_GetAttr(parent, node->operand);
}

ACCESS(access_instance_dict)
{
    UNUSED_FRAME;
    UNUSED_NODE;
    PyObject **dict = _PyObject_GetDictPtr(parent);
    if (dict != NULL && *dict != NULL)
        return Py_NewRef(*dict);
    /* Attributes are inline, or there are none yet: this makes the dictionary. (Types differ.) */
    return PyObject_GenericGetDict(parent, NULL);
}

ACCESS(access_dict_item)
{
    UNUSED_FRAME;
    return dict_lookup(parent, node->operand);
}

ACCESS(access_list_item)
{
    UNUSED_FRAME;
    if (!PyList_Check(parent) || node->number >= PyList_GET_SIZE(parent))
        return NULL;
    return Py_NewRef(PyList_GET_ITEM(parent, node->number));
}

ACCESS(access_tuple_item)
{
    UNUSED_FRAME;
    if (!PyTuple_Check(parent) || node->number >= PyTuple_GET_SIZE(parent))
        return NULL;
    return Py_NewRef(PyTuple_GET_ITEM(parent, node->number));
}

ACCESS(access_type)
{
    UNUSED_FRAME;
    UNUSED_NODE;
    return Py_NewRef((PyObject *)Py_TYPE(parent));
}

static PyObject *tensor_extent(const Node *node, PyObject *tensor, bool stride)
{
    if (!is_tensor(tensor))
        return NULL;
    if (!tensor_access_ready())
        return PyObject_CallMethod(tensor, stride ? "stride" : "size", "n", node->number);
    TensorMeta meta;
    tensor_read(tensor_impl(tensor), &meta);
    if (node->number >= meta.rank)
        return NULL;
    return PyLong_FromLongLong((stride ? meta.strides : meta.sizes)[node->number]);
}

ACCESS(access_size)
{
    UNUSED_FRAME;
    return tensor_extent(node, parent, false);
}

ACCESS(access_stride)
{
    UNUSED_FRAME;
    return tensor_extent(node, parent, true);
}

ACCESS(access_call)
{
    UNUSED_FRAME;
    return PyObject_CallOneArg(node->operand, parent);
}

typedef enum { NO_OPERAND, OBJECT_OPERAND, NUMBER_OPERAND } OperandKind;

typedef struct {
    const char *name;
    OperandKind operand;
    bool root; /* reads from the frame, not from a parent */
    access_fn access;
} AccessorKind;

static const AccessorKind accessors[N_ACCESSORS] = {
    [FROM_LOCAL] = {"local", NUMBER_OPERAND, true, access_local},
    [FROM_CELL] = {"cell", NUMBER_OPERAND, true, access_cell},
    [FROM_CELL_OBJECT] = {"cell_object", NUMBER_OPERAND, true, access_cell_object},
    [FROM_GLOBAL] = {"global", OBJECT_OPERAND, true, access_global},
    [FROM_BUILTIN] = {"builtin", OBJECT_OPERAND, true, access_builtin},
    [FROM_OBJECT] = {"object", OBJECT_OPERAND, true, access_object},
    [FROM_ALIVE] = {"alive", OBJECT_OPERAND, true, access_alive},
    [FROM_ATTR] = {"attr", OBJECT_OPERAND, false, access_attr},
    [FROM_INSTANCE_DICT] = {"instance_dict", NO_OPERAND, false, access_instance_dict},
    [FROM_DICT_ITEM] = {"dict_item", OBJECT_OPERAND, false, access_dict_item},
    [FROM_LIST_ITEM] = {"list_item", NUMBER_OPERAND, false, access_list_item},
    [FROM_TUPLE_ITEM] = {"tuple_item", NUMBER_OPERAND, false, access_tuple_item},
    [FROM_TYPE] = {"type", NO_OPERAND, false, access_type},
    [FROM_SIZE] = {"size", NUMBER_OPERAND, false, access_size},
    [FROM_STRIDE] = {"stride", NUMBER_OPERAND, false, access_stride},
    [FROM_CALL] = {"call", OBJECT_OPERAND, false, access_call},
};

/* ---- the walk ----------------------------------------------------------------------------------- */

/* The first guard at or below a node, to report if its value cannot be read at all. */
static PyObject *first_guard(const Node *node)
{
    if (node->n_checks > 0)
        return node->checks[0].guard_id;
    for (Py_ssize_t i = 0; i < node->n_children; i++) {
        PyObject *found = first_guard(&node->children[i]);
        if (found != NULL)
            return found;
    }
    return NULL;
}

static int run_checks(Walk *walk, const Node *node, PyObject *value)
{
    for (Py_ssize_t i = 0; i < node->n_checks; i++) {
        const Check *check = &node->checks[i];
        int passed = check->run(check, value, walk->slots);
        if (passed == 1)
            continue;
        if (walk->explain)
            walk->failed = check->guard_id;
        return passed < 0 ? error_absorb() : 0;
    }
    if (node->slot >= 0)
        Py_XSETREF(walk->slots[node->slot], Py_NewRef(value));
    return 1;
}

static int walk_children(Walk *walk, const Node *node, PyObject *value)
{
    int passed = 1;
    for (Py_ssize_t i = 0; i < node->n_children && passed == 1; i++)
        passed = walk_node(walk, &node->children[i], value);
    return passed;
}

/* Checks what is below a value; skips the walk if nothing there has changed since last time. */
static int walk_memoised(Walk *walk, const Node *node, PyObject *value)
{
    Memos *memos = node->memos;
    if (walk->explain)
        return walk_children(walk, node, value);
    int known = memo_replay(memos, walk, value);
    if (known < 0)
        return error_absorb();
    if (known == 1)
        return 1;
    Memo *memo = walk->recording = memo_start_recording(memos, value);
    int passed = walk_children(walk, node, value);
    walk->recording = NULL;
    if (memo != NULL)
        memo_stop_recording(memos, memo, passed == 1);
    return passed;
}

static int walk_below(Walk *walk, const Node *node, PyObject *parent, PyObject *value)
{
    if (node->memos != NULL)
        return walk_memoised(walk, node, value);
    Memo *recording = walk->recording;
    if (recording == NULL)
        return walk_children(walk, node, value);
    memo_note(recording, node, parent, value);
    if (memo_is_replayed_by_walking(node, parent, value))
        walk->recording = NULL;
    int passed = walk_children(walk, node, value);
    walk->recording = recording;
    return passed;
}

int walk_node(Walk *walk, const Node *node, PyObject *parent)
{
    PyObject *value = node->access(node, parent, walk->frame);
    if (value == NULL) {
        if (walk->explain)
            walk->failed = first_guard(node);
        return error_absorb();
    }
    int passed = run_checks(walk, node, value);
    if (passed == 1)
        passed = walk_below(walk, node, parent, value);
    Py_DECREF(value);
    return passed;
}

static int run_tree_checks(const GuardTree *self, PyObject *collected, bool before, Walk *walk);

static PyObject *new_collected(const GuardTree *self)
{
    return PyList_New(self->n_slots); /* NULL items: nothing reads the list before they are filled */
}

static void fill_missing(PyObject *collected)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(collected); i++)
        if (PyList_GET_ITEM(collected, i) == NULL)
            PyList_SET_ITEM(collected, i, Py_NewRef(Py_None));
}

/* 1, 0 or -1; on 1 every slot is filled. */
static int walk_tree(const GuardTree *self, Walk *walk, PyObject *collected)
{
    int passed = run_tree_checks(self, collected, true, walk);
    for (Py_ssize_t i = 0; passed == 1 && i < self->n_nodes - self->fixed.n_children; i++)
        passed = walk_node(walk, &self->nodes[i], NULL);
    if (passed == 1 && self->fixed.memos != NULL)
        passed = walk_memoised(walk, &self->fixed, (PyObject *)self);
    if (passed != 1)
        return passed;
    fill_missing(collected);
    return run_tree_checks(self, collected, false, walk);
}

int guard_tree_check(PyObject *tree, const FrameValues *frame, PyObject **collected)
{
    GuardTree *self = (GuardTree *)tree;
    PyObject *list = new_collected(self);
    if (list == NULL)
        return -1;
    Walk walk = {.frame = frame, .slots = ((PyListObject *)list)->ob_item};
    int passed = walk_tree(self, &walk, list);
    if (passed != 1)
        Py_CLEAR(list);
    *collected = list;
    return passed;
}

/* ---- checks of the whole tree ------------------------------------------------------------------- */

static int run_tree_checks(const GuardTree *self, PyObject *collected, bool before, Walk *walk)
{
    SeenSizes *seen = before ? NULL : self->seen;
    bool again = seen != NULL && seen_sizes_again(seen, ((PyListObject *)collected)->ob_item);
    for (Py_ssize_t i = 0; i < self->n_tree_checks; i++) {
        const TreeCheck *check = &self->tree_checks[i];
        if (check->first != before || (again && check->program != NULL))
            continue;
        int passed = check->run(check, collected);
        if (passed == 1)
            continue;
        if (walk->explain)
            walk->failed = check->guard_id;
        return passed < 0 ? error_absorb() : 0;
    }
    if (seen != NULL && !again)
        seen_sizes_passed(seen);
    return 1;
}

/* ---- parsing ------------------------------------------------------------------------------------ */

static int parse_node(PyObject *tuple, bool root, Py_ssize_t n_slots, Node *node);

static const AccessorKind *find_accessor(PyObject *accessor)
{
    PyObject *name = PyTuple_Check(accessor) && PyTuple_GET_SIZE(accessor) > 0
                         ? PyTuple_GET_ITEM(accessor, 0)
                         : accessor;
    for (size_t i = 0; PyUnicode_Check(name) && i < sizeof(accessors) / sizeof(accessors[0]); i++)
        if (PyUnicode_CompareWithASCIIString(name, accessors[i].name) == 0)
            return &accessors[i];
    PyErr_Format(PyExc_ValueError, "unknown accessor %R", accessor);
    return NULL;
}

static int parse_accessor(PyObject *accessor, bool root, Node *node)
{
    const AccessorKind *kind = find_accessor(accessor);
    if (kind == NULL)
        return -1;
    if (kind->root != root || PyTuple_GET_SIZE(accessor) != 1 + (kind->operand != NO_OPERAND)) {
        PyErr_Format(PyExc_ValueError, "accessor %R: wrong place or arguments", accessor);
        return -1;
    }
    node->accessor = (AccessorId)(kind - accessors);
    node->access = kind->access;
    if (kind->operand == OBJECT_OPERAND)
        node->operand = Py_NewRef(PyTuple_GET_ITEM(accessor, 1));
    if (node->accessor == FROM_ALIVE && !PyWeakref_CheckRef(node->operand)) {
        PyErr_SetString(PyExc_TypeError, "accessor 'alive': not a weak reference");
        return -1;
    }
    if (kind->operand == NUMBER_OPERAND) {
        node->number = PyLong_AsSsize_t(PyTuple_GET_ITEM(accessor, 1));
        if (node->number < 0) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "accessor %R: negative index", accessor);
            return -1;
        }
    }
    return 0;
}

static int parse_checks(PyObject *checks, Py_ssize_t n_slots, Node *node)
{
    Py_ssize_t n = PyTuple_GET_SIZE(checks);
    node->checks = PyMem_Calloc((size_t)n + 1, sizeof(Check));
    if (node->checks == NULL)
        return PyErr_NoMemory(), -1;
    for (; node->n_checks < n; node->n_checks++) {
        Check *check = &node->checks[node->n_checks];
        if (check_parse(PyTuple_GET_ITEM(checks, node->n_checks), n_slots, check) < 0) {
            check_clear(check);
            return -1;
        }
    }
    return 0;
}

static int parse_children(PyObject *children, bool root, Py_ssize_t n_slots, Node **nodes,
                          Py_ssize_t *n_nodes)
{
    Py_ssize_t n = PyTuple_GET_SIZE(children);
    *nodes = PyMem_Calloc((size_t)n + 1, sizeof(Node));
    if (*nodes == NULL)
        return PyErr_NoMemory(), -1;
    while (*n_nodes < n) {
        PyObject *child = PyTuple_GET_ITEM(children, *n_nodes);
        Node *node = &(*nodes)[(*n_nodes)++]; /* counted first: freed even when parsing fails */
        if (parse_node(child, root, n_slots, node) < 0)
            return -1;
    }
    return 0;
}

static bool is_fixed(const Node *node)
{
    return node->accessor == FROM_OBJECT || node->accessor == FROM_ALIVE;
}

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

static int parse_node(PyObject *tuple, bool root, Py_ssize_t n_slots, Node *node)
{
    PyObject *accessor, *checks, *children;
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a node is a tuple (accessor, checks, slot, children)");
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "O!O!nO!:node", &PyTuple_Type, &accessor, &PyTuple_Type, &checks,
                          &node->slot, &PyTuple_Type, &children))
        return -1;
    if (node->slot >= n_slots || node->slot < -1) {
        PyErr_Format(PyExc_IndexError, "node: no slot %zd", node->slot);
        return -1;
    }
    if (parse_accessor(accessor, root, node) < 0 || parse_checks(checks, n_slots, node) < 0)
        return -1;
    if (Py_EnterRecursiveCall(" in a guard tree"))
        return -1;
    int result = parse_children(children, false, n_slots, &node->children, &node->n_children);
    Py_LeaveRecursiveCall();
    if (result == 0 && root && !is_fixed(node) && reads_containers(node))
        node->memos = memos_new(node);
    return result;
}

/* Gathers the fixed objects below one node: a program uses many classes, modules and functions. */
static void gather_fixed(GuardTree *self)
{
    Py_ssize_t first = self->n_nodes;
    while (first > 0 && is_fixed(&self->nodes[first - 1]))
        first--;
    self->fixed = (Node){.accessor = FROM_OBJECT, .slot = -1, .children = &self->nodes[first]};
    if (first < self->n_nodes)
        self->fixed.memos = memos_new(&self->fixed);
    if (self->fixed.memos != NULL)
        self->fixed.n_children = self->n_nodes - first;
}

static int parse_tree_checks(PyObject *checks, GuardTree *self)
{
    Py_ssize_t n = PyTuple_GET_SIZE(checks);
    self->tree_checks = PyMem_Calloc((size_t)n + 1, sizeof(TreeCheck));
    if (self->tree_checks == NULL)
        return PyErr_NoMemory(), -1;
    while (self->n_tree_checks < n) {
        PyObject *tuple = PyTuple_GET_ITEM(checks, self->n_tree_checks);
        TreeCheck *check = &self->tree_checks[self->n_tree_checks++];
        if (tree_check_parse(tuple, self->n_slots, check) < 0)
            return -1;
        if (check->program == NULL)
            continue;
        if (self->seen == NULL && (self->seen = seen_sizes_new(self->n_slots)) == NULL)
            return -1;
        seen_sizes_of(self->seen, check->program);
    }
    return 0;
}

/* ---- the Python type ---------------------------------------------------------------------------- */

static void clear_nodes(Node **nodes, Py_ssize_t *n_nodes)
{
    Node *old = *nodes;
    Py_ssize_t n = *n_nodes;
    *nodes = NULL;
    *n_nodes = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_CLEAR(old[i].operand);
        for (Py_ssize_t j = 0; j < old[i].n_checks; j++)
            check_clear(&old[i].checks[j]);
        PyMem_Free(old[i].checks);
        memos_free(old[i].memos);
        clear_nodes(&old[i].children, &old[i].n_children);
    }
    PyMem_Free(old);
}

static int traverse_nodes(const Node *nodes, Py_ssize_t n_nodes, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < n_nodes; i++) {
        Py_VISIT(nodes[i].operand);
        for (Py_ssize_t j = 0; j < nodes[i].n_checks; j++) {
            int result = check_traverse(&nodes[i].checks[j], visit, arg);
            if (result)
                return result;
        }
        int known = memos_traverse(nodes[i].memos, visit, arg);
        if (known)
            return known;
        int result = traverse_nodes(nodes[i].children, nodes[i].n_children, visit, arg);
        if (result)
            return result;
    }
    return 0;
}

static int tree_traverse(PyObject *object, visitproc visit, void *arg)
{
    GuardTree *self = (GuardTree *)object;
    Py_VISIT(Py_TYPE(object));
    for (Py_ssize_t i = 0; i < self->n_tree_checks; i++)
        Py_VISIT(self->tree_checks[i].operand);
    int result = memos_traverse(self->fixed.memos, visit, arg);
    return result ? result : traverse_nodes(self->nodes, self->n_nodes, visit, arg);
}

/* A tree that the garbage collector cleared must not pass for any frame. */
static int tree_clear(PyObject *object)
{
    GuardTree *self = (GuardTree *)object;
    TreeCheck *checks = self->tree_checks;
    Py_ssize_t n = self->n_tree_checks;
    self->tree_checks = NULL;
    self->n_tree_checks = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        tree_check_clear(&checks[i]);
    PyMem_Free(checks);
    PyMem_Free(self->seen);
    self->seen = NULL;
    memos_free(self->fixed.memos);
    self->fixed = (Node){.slot = -1};
    clear_nodes(&self->nodes, &self->n_nodes);
    return 0;
}

static PyObject *tree_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nodes", "tree_checks", "n_slots", NULL};
    PyObject *nodes, *checks;
    Py_ssize_t n_slots;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!n:GuardTree", names, &PyTuple_Type, &nodes,
                                     &PyTuple_Type, &checks, &n_slots))
        return NULL;
    if (n_slots < 0)
        return PyErr_SetString(PyExc_ValueError, "n_slots is negative"), NULL;
    GuardTree *self = (GuardTree *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->n_slots = n_slots;
    if (parse_children(nodes, true, n_slots, &self->nodes, &self->n_nodes) < 0 ||
        parse_tree_checks(checks, self) < 0)
        Py_CLEAR(self);
    else
        gather_fixed(self);
    return (PyObject *)self;
}

/* locals: list or tuple; cells: tuple or None; globals: dict. `held` keeps the locals. */
static int parse_frame(PyObject *args, FrameValues *frame, PyObject **held)
{
    PyObject *locals, *cells, *globals;
    if (!PyArg_ParseTuple(args, "OOO!", &locals, &cells, &PyDict_Type, &globals))
        return -1;
    *held = PySequence_Tuple(locals);
    if (*held == NULL)
        return -1;
    frame->locals = ((PyTupleObject *)*held)->ob_item;
    frame->n_locals = PyTuple_GET_SIZE(*held);
    frame->closure = PyTuple_Check(cells) ? cells : NULL;
    frame->globals = globals;
    return 0;
}

static PyObject *tree_check(PyObject *self, PyObject *args)
{
    FrameValues frame;
    PyObject *held, *collected;
    if (parse_frame(args, &frame, &held) < 0)
        return NULL;
    int passed = guard_tree_check(self, &frame, &collected);
    Py_DECREF(held);
    if (passed == 0)
        Py_RETURN_NONE;
    return collected;
}

static PyObject *tree_explain(PyObject *self, PyObject *args)
{
    FrameValues frame;
    PyObject *held, *result = NULL;
    if (parse_frame(args, &frame, &held) < 0)
        return NULL;
    PyObject *list = new_collected((GuardTree *)self);
    if (list != NULL) {
        Walk walk = {.frame = &frame, .slots = ((PyListObject *)list)->ob_item, .explain = true};
        int passed = walk_tree((GuardTree *)self, &walk, list);
        if (passed == 1)
            result = Py_NewRef(Py_None);
        else if (passed == 0)
            result = walk.failed != NULL ? Py_NewRef(walk.failed) : PyLong_FromLong(-1);
        Py_DECREF(list);
    }
    Py_DECREF(held);
    return result;
}

static PyMethodDef tree_methods[] = {
    {"check", tree_check, METH_VARARGS,
     PyDoc_STR("check(locals, cells, globals) -> list | None\n\n"
               "The collected values when every guard holds, else None.\n"
               "`locals` are the flat parameters, `cells` the closure's cells.")},
    {"explain", tree_explain, METH_VARARGS,
     PyDoc_STR("explain(locals, cells, globals) -> guard id | None\n\n"
               "The id of the first guard that fails (-1: a value without a guard is gone).")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tree_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR(
                    "GuardTree(nodes, tree_checks, n_slots)\n--\n\n"
                    "What must hold for a captured frame to be used again.\n\n"
                    "nodes: tuple of (accessor, checks, slot, children); see docs/architecture/extension-c.md.\n"
                    "tree_checks: ('global_state'[, GlobalState], id), ('distinct', slots, id),\n"
                    "    ('functions', tuple of functions whose code and defaults stay, id) or\n"
                    "    ('shape', program or callable of the collected list, id); a program is a\n"
                    "    postfix tuple of ('slot', i), ('const', c), '+', '-', '*', '//', '%', 'min',\n"
                    "    'max', '==', '!=', '<', '<=', '>', '>=', 'and', 'or', 'not', 'neg'.\n"
                    "n_slots: length of the collected list.")},
    {Py_tp_new, tree_new},
    {Py_tp_methods, tree_methods},
    {Py_tp_traverse, tree_traverse},
    {Py_tp_clear, tree_clear},
    {Py_tp_dealloc, dealloc_by_clear},
    {0, NULL},
};

static PyType_Spec tree_spec = {
    .name = "weft._frame.GuardTree",
    .basicsize = sizeof(GuardTree),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = tree_slots,
};

int guards_init(PyObject *module)
{
    GuardTree_Type = add_type(module, &tree_spec);
    return GuardTree_Type == NULL ? -1 : 0;
}
