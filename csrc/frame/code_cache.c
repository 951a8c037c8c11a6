/* Entry {guards, replacement} and the entries of each code object.
 *
 * A code object finds its CodeCache through CPython's per-code "extra" slot. The cache is owned by
 *   - normally the code object (it holds a reference; the cache has a borrowed one back);
 *   - once a CompiledFunction uses it, the CompiledFunctions (the cache holds the code, and the code's
 *     extra slot is a plain pointer). The garbage collector does not see code objects; this way a
 *     cycle model -> compiled method -> entries -> model can be collected.
 * The tuple of entries is replaced, never changed. So a search is safe although its checks may run
 * Python code, which may add entries or let another thread do so.
 */
#include "weft_frame.h"

PyTypeObject *Entry_Type;
PyTypeObject *CodeCache_Type;

static Py_ssize_t extra_index = -1;
static CodeCache *all_caches; /* all caches, linked: a dict would fail at the recursion limit */

/* ---- finding and making caches ------------------------------------------------------------------ */

CodeCache *code_cache_find(PyObject *code)
{
    void *extra = NULL;
    if (code_extra_get(code, extra_index, &extra) < 0)
        PyErr_Clear();
    return extra;
}

/* Called when a code object is freed: releases the cache that it owns. */
static void code_died(void *extra)
{
    CodeCache *cache = extra;
    if (cache != NULL && !cache->owned) {
        cache->code = NULL;
        Py_DECREF(cache);
    }
}

static void link_cache(CodeCache *cache)
{
    cache->previous = NULL;
    cache->next = all_caches;
    if (all_caches != NULL)
        all_caches->previous = cache;
    all_caches = cache;
}

static void unlink_cache(CodeCache *cache)
{
    if (cache->previous != NULL)
        cache->previous->next = cache->next;
    else
        all_caches = cache->next;
    if (cache->next != NULL)
        cache->next->previous = cache->previous;
}

CodeCache *code_cache_get(PyObject *code)
{
    CodeCache *cache = code_cache_find(code);
    if (cache != NULL)
        return cache;
    cache = PyObject_GC_New(CodeCache, CodeCache_Type);
    if (cache == NULL)
        return NULL;
    cache->entries = PyTuple_New(0);
    cache->code = NULL;
    cache->frozen = NULL;
    cache->clears = 0;
    cache->owned = cache->skip = cache->unhooked = false;
    link_cache(cache);
    if (cache->entries == NULL || code_extra_set(code, extra_index, cache) < 0) {
        Py_DECREF(cache);
        return NULL;
    }
    cache->code = code; /* borrowed; the reference made above is now the code's */
    PyObject_GC_Track((PyObject *)cache);
    return cache;
}

void code_cache_own(CodeCache *cache)
{
    if (cache->owned) {
        Py_INCREF(cache);
        return;
    }
    cache->owned = true;
    Py_INCREF(cache->code); /* and the code object's reference to the cache becomes the caller's */
}

static bool is_frozen(const CodeCache *cache, PyObject *owner)
{
    int frozen = cache->frozen == NULL ? 0 : PySet_Contains(cache->frozen, owner);
    if (frozen < 0)
        PyErr_Clear();
    return frozen != 0;
}

bool code_cache_may_compile(const CodeCache *cache, PyObject *owner)
{
    return cache == NULL || (!cache->skip && !is_frozen(cache, owner));
}

/* The place of the entry that was used last: the first of those for any sizes, after those for one size,
 * whose kernels are faster; of those, the first. */
static Py_ssize_t place_of(PyObject *entries, PyObject *entry)
{
    Py_ssize_t n = 0;
    if (((Entry *)entry)->any_size)
        while (n < PyTuple_GET_SIZE(entries) && !((Entry *)PyTuple_GET_ITEM(entries, n))->any_size)
            n++;
    return n;
}

/* Move `entry` to its place in a tuple of entries. */
static int move_to_front(PyObject **entries, PyObject *entry)
{
    PyObject *old = *entries;
    Py_ssize_t n = PyTuple_GET_SIZE(old), found = n, place = place_of(old, entry);
    for (Py_ssize_t i = 0; i < n && found == n; i++)
        if (PyTuple_GET_ITEM(old, i) == entry)
            found = i;
    if (found == place && found < n)
        return 0;
    PyObject *tuple = PyTuple_New(found == n ? n + 1 : n);
    if (tuple == NULL)
        return -1;
    PyTuple_SET_ITEM(tuple, place, Py_NewRef(entry));
    for (Py_ssize_t i = 0, at = 0; i < n; i++)
        if (i != found) {
            at += at == place;
            PyTuple_SET_ITEM(tuple, at++, Py_NewRef(PyTuple_GET_ITEM(old, i)));
        }
    Py_SETREF(*entries, tuple);
    return 0;
}

static bool holds(PyObject *entries, PyObject *entry)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++)
        if (PyTuple_GET_ITEM(entries, i) == entry)
            return true;
    return false;
}

/* ---- searching ---------------------------------------------------------------------------------- */

static int try_entry(Entry *entry, const FrameValues *frame, PyObject **collected)
{
    if (entry->guards == NULL || (entry->globals != NULL && entry->globals != frame->globals))
        return 0;
    bool paused = hook_pause(true);
    int result = guard_tree_check(entry->guards, frame, collected);
    hook_pause(paused);
    return result;
}

/* Whether an entry is for these settings; `owner` NULL: that is known. */
static bool is_for(const Entry *entry, PyObject *owner)
{
    return owner == NULL || entry->owner == NULL || entry->owner == owner;
}

/* Tries the entries of this owner that are not among those `tried` before. */
static inline __attribute__((always_inline)) int search(PyObject **place, PyObject *owner,
                                                        PyObject *tried, const FrameValues *frame,
                                                        Entry **entry, PyObject **collected)
{
    int result = 0;
    PyObject *entries = Py_NewRef(*place);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries) && result == 0; i++) {
        Entry *candidate = (Entry *)PyTuple_GET_ITEM(entries, i);
        if (!is_for(candidate, owner) || (tried != NULL && holds(tried, (PyObject *)candidate)))
            continue;
        result = try_entry(candidate, frame, collected);
        if (result != 1)
            continue;
        *entry = (Entry *)Py_NewRef(candidate);
        candidate->hits++;
        if (i > 0 && entries == *place && move_to_front(place, (PyObject *)candidate) < 0)
            PyErr_Clear(); /* only the order */
    }
    Py_DECREF(entries);
    return result;
}

int code_cache_search(CodeCache *cache, PyObject *owner, const FrameValues *frame, Entry **entry,
                      PyObject **collected)
{
    return search(&cache->entries, owner, NULL, frame, entry, collected);
}

int used_entries_search(UsedEntries *used, const FrameValues *frame, Entry **entry,
                        PyObject **collected)
{
    return used->entries == NULL ? 0
                                 : search(&used->entries, NULL, NULL, frame, entry, collected);
}

int code_cache_search_others(CodeCache *cache, PyObject *owner, const UsedEntries *used,
                             const FrameValues *frame, Entry **entry, PyObject **collected)
{
    PyObject *tried = Py_XNewRef(used->entries);
    int result = search(&cache->entries, owner, tried, frame, entry, collected);
    Py_XDECREF(tried);
    return result;
}

int used_entries_add(UsedEntries *used, Entry *entry)
{
    if (used->entries == NULL && (used->entries = PyTuple_New(0)) == NULL)
        return -1;
    return move_to_front(&used->entries, (PyObject *)entry);
}

static PyObject *list_of(PyObject *const *values, Py_ssize_t n)
{
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list != NULL && i < n; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(values[i] != NULL ? values[i] : Py_None));
    return list;
}

static PyObject *ask_on_miss(PyObject *on_miss, PyObject *compiled, PyObject *function, PyObject *code,
                             const FrameValues *frame)
{
    PyObject *locals = list_of(frame->locals, frame->n_locals);
    PyObject *cells = frame->closure != NULL ? Py_NewRef(frame->closure) : PyTuple_New(0);
    PyObject *answer = NULL;
    PyObject *previous = hook_swap(NULL); /* the compiler itself must not be compiled */
    PyThreadState *state = PyThreadState_Get();
    _PyFrameEvalFunction other = hook_set_other_aside(); /* nor by torch.compile */
    begin_ours(state);
    if (locals != NULL && cells != NULL)
        answer = PyObject_CallFunctionObjArgs(on_miss, compiled != NULL ? compiled : Py_None, function,
                                              code, locals, cells, frame->globals, NULL);
    end_ours(state);
    hook_put_back(other);
    Py_XDECREF(hook_swap(previous));
    Py_XDECREF(locals);
    Py_XDECREF(cells);
    return answer;
}

int code_cache_miss(PyObject *on_miss, PyObject *compiled, PyObject *function, PyObject *code,
                    const FrameValues *frame, Entry **entry, PyObject **collected)
{
    PyObject *answer = ask_on_miss(on_miss, compiled, function, code, frame);
    if (answer == NULL)
        error_clean();
    if (answer == NULL || answer == Py_None) {
        Py_XDECREF(answer);
        return answer == NULL ? -1 : 0;
    }
    if (!Py_IS_TYPE(answer, Entry_Type)) {
        PyErr_Format(PyExc_TypeError, "on_miss gave %R instead of an Entry or None", answer);
        Py_DECREF(answer);
        return -1;
    }
    CodeCache *cache = code_cache_get(code);
    if (cache == NULL ||
        (!holds(cache->entries, answer) && move_to_front(&cache->entries, answer) < 0)) {
        Py_DECREF(answer);
        return -1;
    }
    int result = try_entry((Entry *)answer, frame, collected);
    if (result == 1)
        *entry = (Entry *)answer;
    else
        Py_DECREF(answer);
    return result;
}

PyObject *entry_call(Entry *entry, PyObject *collected, PyObject *on_miss)
{
    PyObject *wanted = entry->needs_hook ? on_miss : NULL;
    PyObject *args[2] = {NULL, collected};
    PyObject *result;
    if (wanted == hook_current()) {
        result = PyObject_Vectorcall(entry->fn, args + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    else {
        PyObject *previous = hook_swap(Py_XNewRef(wanted));
        result = PyObject_Vectorcall(entry->fn, args + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        Py_XDECREF(hook_swap(previous));
    }
    Py_DECREF(collected);
    if (result == NULL)
        error_clean();
    frames_end();
    return result;
}

/* ---- the Python types --------------------------------------------------------------------------- */

static int cache_traverse(PyObject *object, visitproc visit, void *arg)
{
    CodeCache *self = (CodeCache *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->entries);
    Py_VISIT(self->frozen);
    return 0;
}

static int cache_clear(PyObject *object)
{
    CodeCache *self = (CodeCache *)object;
    PyObject *empty = PyTuple_New(0);
    if (empty == NULL)
        PyErr_Clear();
    else
        Py_SETREF(self->entries, empty);
    Py_CLEAR(self->frozen);
    return 0;
}

static void cache_dealloc(PyObject *object)
{
    CodeCache *self = (CodeCache *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    unlink_cache(self);
    PyObject *code = self->code;
    self->code = NULL;
    if (code != NULL) {
        code_extra_set(code, extra_index, NULL);
        if (self->owned)
            Py_DECREF(code);
    }
    Py_CLEAR(self->entries);
    Py_CLEAR(self->frozen);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyType_Slot cache_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("The entries of one code object.")},
    {Py_tp_traverse, cache_traverse},
    {Py_tp_clear, cache_clear},
    {Py_tp_dealloc, cache_dealloc},
    {0, NULL},
};

static PyType_Spec cache_spec = {
    .name = "weft._frame.CodeCache",
    .basicsize = sizeof(CodeCache),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = cache_slots,
};

static int skip_code(PyObject *code)
{
    CodeCache *cache = code_cache_get(code);
    if (cache == NULL)
        return -1;
    cache->skip = true;
    return 0;
}

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"guards", "fn", "globals", "needs_hook", "may_rerun", "any_size",
                            "owner", NULL};
    PyObject *guards, *fn, *globals = Py_None, *owner = Py_None;
    int needs_hook = 0, may_rerun = 0, any_size = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|OpppO:Entry", names, GuardTree_Type, &guards, &fn,
                                     &globals, &needs_hook, &may_rerun, &any_size, &owner))
        return NULL;
    if (!PyCallable_Check(fn) || (globals != Py_None && !PyDict_Check(globals)))
        return PyErr_SetString(PyExc_TypeError, "Entry: fn is callable, globals a dict or None"), NULL;
    /* The replacement itself must not be compiled. */
    if (PyFunction_Check(fn) && skip_code(PyFunction_GET_CODE(fn)) < 0)
        return NULL;
    Entry *self = (Entry *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->guards = Py_NewRef(guards);
    self->fn = Py_NewRef(fn);
    self->globals = globals != Py_None ? Py_NewRef(globals) : NULL;
    self->owner = owner != Py_None ? Py_NewRef(owner) : NULL;
    self->needs_hook = (char)needs_hook;
    self->may_rerun = (char)may_rerun;
    self->any_size = (char)any_size;
    return (PyObject *)self;
}

static int entry_traverse(PyObject *object, visitproc visit, void *arg)
{
    Entry *self = (Entry *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->guards);
    Py_VISIT(self->fn);
    Py_VISIT(self->globals);
    Py_VISIT(self->owner);
    return 0;
}

static int entry_clear(PyObject *object)
{
    Entry *self = (Entry *)object;
    Py_CLEAR(self->guards);
    Py_CLEAR(self->fn);
    Py_CLEAR(self->globals);
    Py_CLEAR(self->owner);
    return 0;
}

static PyMemberDef entry_members[] = {
    {"guards", T_OBJECT, offsetof(Entry, guards), READONLY, PyDoc_STR("The GuardTree.")},
    {"fn", T_OBJECT, offsetof(Entry, fn), READONLY, PyDoc_STR("Called with the collected list.")},
    {"globals", T_OBJECT, offsetof(Entry, globals), READONLY,
     PyDoc_STR("The globals the entry is for; None: any.")},
    {"needs_hook", T_BOOL, offsetof(Entry, needs_hook), READONLY,
     PyDoc_STR("Whether frames called by fn may be compiled in turn.")},
    {"may_rerun", T_BOOL, offsetof(Entry, may_rerun), READONLY,
     PyDoc_STR("Whether fn may raise RunEagerly.")},
    {"any_size", T_BOOL, offsetof(Entry, any_size), READONLY,
     PyDoc_STR("Whether it is for several sizes or numbers: tried after those for one.")},
    {"owner", T_OBJECT, offsetof(Entry, owner), READONLY,
     PyDoc_STR("The settings that it was compiled with; None: any.")},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, PyDoc_STR("How often it was used.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot entry_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("Entry(guards, fn, globals=None, needs_hook=False, may_rerun=False, "
                                  "any_size=False, owner=None)\n--\n\n"
                                  "One compiled version of a code object.\n\n"
                                  "While `guards` hold, `fn(collected)` replaces the frame.")},
    {Py_tp_new, entry_new},
    {Py_tp_members, entry_members},
    {Py_tp_traverse, entry_traverse},
    {Py_tp_clear, entry_clear},
    {Py_tp_dealloc, dealloc_by_clear},
    {0, NULL},
};

static PyType_Spec entry_spec = {
    .name = "weft._frame.Entry",
    .basicsize = sizeof(Entry),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = entry_slots,
};

/* ---- module functions --------------------------------------------------------------------------- */

static int require_code(PyObject *code)
{
    if (PyCode_Check(code))
        return 0;
    PyErr_Format(PyExc_TypeError, "a code object is needed, not %.100s", Py_TYPE(code)->tp_name);
    return -1;
}

/* Those of the code's entries that are for an owner, or all. */
static PyObject *frame_entries(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *code, *owner = NULL, *list = PyList_New(0);
    if (list == NULL || !PyArg_ParseTuple(args, "O!|O:entries", &PyCode_Type, &code, &owner)) {
        Py_XDECREF(list);
        return NULL;
    }
    CodeCache *cache = code_cache_find(code);
    PyObject *entries = cache != NULL ? Py_NewRef(cache->entries) : NULL;
    for (Py_ssize_t i = 0; entries != NULL && list != NULL && i < PyTuple_GET_SIZE(entries); i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        if (is_for((Entry *)entry, owner) && PyList_Append(list, entry) < 0)
            Py_CLEAR(list);
    }
    Py_XDECREF(entries);
    return list;
}

static PyObject *frame_add_entry(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *code, *entry;
    Py_ssize_t most = PY_SSIZE_T_MAX;
    if (!PyArg_ParseTuple(args, "O!O!|n:add_entry", &PyCode_Type, &code, Entry_Type, &entry, &most))
        return NULL;
    CodeCache *cache = code_cache_get(code);
    if (cache == NULL || move_to_front(&cache->entries, entry) < 0)
        return NULL;
    if (PyTuple_GET_SIZE(cache->entries) > most) {
        PyObject *latest = PyTuple_GetSlice(cache->entries, 0, most);
        if (latest == NULL)
            return NULL;
        Py_SETREF(cache->entries, latest);
    }
    Py_RETURN_NONE;
}

static PyObject *frame_skip(PyObject *Py_UNUSED(module), PyObject *code)
{
    if (require_code(code) < 0 || skip_code(code) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *frame_skip_deeply(PyObject *Py_UNUSED(module), PyObject *code)
{
    if (require_code(code) < 0 || skip_code(code) < 0)
        return NULL;
    code_cache_find(code)->unhooked = true;
    Py_RETURN_NONE;
}

static PyObject *frame_freeze(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *code, *owner = Py_None;
    if (!PyArg_ParseTuple(args, "O!|O:freeze", &PyCode_Type, &code, &owner))
        return NULL;
    CodeCache *cache = code_cache_get(code);
    if (cache == NULL || (cache->frozen == NULL && (cache->frozen = PySet_New(NULL)) == NULL) ||
        PySet_Add(cache->frozen, owner) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *frame_is_settled(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *code, *owner = Py_None;
    if (!PyArg_ParseTuple(args, "O!|O:is_settled", &PyCode_Type, &code, &owner))
        return NULL;
    return PyBool_FromLong(!code_cache_may_compile(code_cache_find(code), owner));
}

/* What keeps the code's entries alive, as a compiled function does. */
static PyObject *frame_keep(PyObject *Py_UNUSED(module), PyObject *code)
{
    CodeCache *cache = require_code(code) < 0 ? NULL : code_cache_get(code);
    if (cache == NULL)
        return NULL;
    code_cache_own(cache);
    return (PyObject *)cache;
}

static void forget(CodeCache *cache)
{
    cache->clears++;
    cache_clear((PyObject *)cache);
}

static int forget_all(void)
{
    PyObject *caches = PyList_New(0); /* clearing one may free others: hold all until the end */
    for (CodeCache *cache = all_caches; caches != NULL && cache != NULL; cache = cache->next)
        if (PyList_Append(caches, (PyObject *)cache) < 0)
            Py_CLEAR(caches);
    if (caches == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(caches); i++)
        forget((CodeCache *)PyList_GET_ITEM(caches, i));
    Py_DECREF(caches);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *frame_clear(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *code = Py_None;
    if (!PyArg_ParseTuple(args, "|O:clear", &code))
        return NULL;
    if (code == Py_None) {
        if (forget_all() < 0)
            return NULL;
        Py_RETURN_NONE;
    }
    if (require_code(code) < 0)
        return NULL;
    CodeCache *cache = code_cache_find(code);
    if (cache != NULL) {
        Py_INCREF(cache);
        forget(cache);
        Py_DECREF(cache);
    }
    Py_RETURN_NONE;
}

static PyObject *frame_cache_count(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    Py_ssize_t count = 0;
    for (const CodeCache *cache = all_caches; cache != NULL; cache = cache->next)
        count += PyTuple_GET_SIZE(cache->entries);
    return PyLong_FromSsize_t(count);
}

static PyMethodDef functions[] = {
    {"entries", frame_entries, METH_VARARGS,
     PyDoc_STR("entries(code[, owner]) -> list of Entry, in the order in which they are tried.\n\n"
               "With `owner`, those that are for it.")},
    {"add_entry", frame_add_entry, METH_VARARGS,
     PyDoc_STR("add_entry(code, entry[, most])\n\nPut an entry first among those of its kind, and "
               "keep the first `most`.")},
    {"skip", frame_skip, METH_O,
     PyDoc_STR("skip(code)\n\nLeave the code to the interpreter from now on.")},
    {"skip_deeply", frame_skip_deeply, METH_O,
     PyDoc_STR("skip_deeply(code)\n\nThe same for what the code calls: it runs with the hook off.")},
    {"freeze", frame_freeze, METH_VARARGS,
     PyDoc_STR("freeze(code[, owner])\n\nKeep using the entries, but ask for no more of this owner.")},
    {"is_settled", frame_is_settled, METH_VARARGS,
     PyDoc_STR("is_settled(code[, owner]) -> bool\n\nWhether no more entries are asked for.")},
    {"keep", frame_keep, METH_O,
     PyDoc_STR("keep(code) -> object\n\nThe code's entries live as long as the object.")},
    {"clear", frame_clear, METH_VARARGS,
     PyDoc_STR("clear(code=None)\n\nForget the entries of one code object, or all. Skipped code stays\n"
               "skipped; frozen code may be compiled again.")},
    {"entry_count", frame_cache_count, METH_NOARGS,
     PyDoc_STR("entry_count() -> int\n\nThe entries of all code objects.")},
    {NULL, NULL, 0, NULL},
};

int code_cache_init(PyObject *module)
{
    extra_index = code_extra_request(code_died);
    if (extra_index < 0)
        return PyErr_SetString(PyExc_RuntimeError, "no slot left in code objects"), -1;
    Entry_Type = add_type(module, &entry_spec);
    CodeCache_Type = add_type(module, &cache_spec);
    if (Entry_Type == NULL || CodeCache_Type == NULL)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
