/* CompiledFunction: what weft.compile returns for a Python function; a callable written in C.
 *
 * A call binds its arguments to the flat parameters as CPython would (so that guards can read them),
 * finds an entry whose guards hold, and calls its replacement, without a Python frame in between.
 * Arguments that do not fit are passed to the function itself, which raises the right TypeError.
 */
#include "weft_frame.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *fn;      /* the Python function */
    PyObject *on_miss;
    CodeCache *cache;  /* of `code`, owned; NULL before the first call */
    UsedEntries used;  /* of the cache */
    char is_frozen;    /* tries the entries that it used, and compiles no more */
    PyObject *dict;
    PyObject *weakrefs;
} CompiledFunction;

PyTypeObject *CompiledFunction_Type;

/* ---- binding ------------------------------------------------------------------------------------ */

enum { SMALL = 24 };

/* The flat parameters of one call; the struct owns the references in `values`. */
typedef struct {
    Py_ssize_t n;
    PyObject **values;
    PyObject *small[SMALL];
} Bound;

static Py_ssize_t flat_count(const PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

static void unbind(Bound *bound)
{
    for (Py_ssize_t i = 0; i < bound->n; i++)
        Py_XDECREF(bound->values[i]);
    if (bound->values != bound->small)
        PyMem_Free(bound->values);
}

static PyObject *parameter_name(const PyCodeObject *code, Py_ssize_t i)
{
    return PyTuple_GET_ITEM(code->co_localsplusnames, i);
}

/* The index of the parameter that a keyword names, or -1. */
static Py_ssize_t find_parameter(const PyCodeObject *code, PyObject *keyword)
{
    Py_ssize_t n = code->co_argcount + code->co_kwonlyargcount;
    for (Py_ssize_t i = code->co_posonlyargcount; i < n; i++)
        if (parameter_name(code, i) == keyword)
            return i;
    for (Py_ssize_t i = code->co_posonlyargcount; i < n; i++)
        if (PyUnicode_Compare(parameter_name(code, i), keyword) == 0)
            return i;
    return -1;
}

/* The steps of binding: each returns 1 (done), 0 (the arguments do not fit) or -1 (exception). */

static int bind_positional(const PyCodeObject *code, PyObject *const *args, Py_ssize_t nargs,
                           PyObject **values)
{
    Py_ssize_t n = nargs < code->co_argcount ? nargs : code->co_argcount;
    for (Py_ssize_t i = 0; i < n; i++)
        values[i] = Py_NewRef(args[i]);
    Py_ssize_t at = code->co_argcount + code->co_kwonlyargcount;
    if (!(code->co_flags & CO_VARARGS))
        return nargs <= code->co_argcount;
    PyObject *rest = PyTuple_New(nargs - n);
    if (rest == NULL)
        return -1;
    for (Py_ssize_t i = n; i < nargs; i++)
        PyTuple_SET_ITEM(rest, i - n, Py_NewRef(args[i]));
    values[at] = rest;
    return 1;
}

static int bind_keywords(const PyCodeObject *code, PyObject *const *kwvalues, PyObject *kwnames,
                         PyObject **values)
{
    PyObject *rest = NULL;
    if (code->co_flags & CO_VARKEYWORDS) {
        rest = values[flat_count(code) - 1] = PyDict_New();
        if (rest == NULL)
            return -1;
    }
    Py_ssize_t n = kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *keyword = PyTuple_GET_ITEM(kwnames, i);
        Py_ssize_t at = find_parameter(code, keyword);
        if (at < 0 && rest != NULL) {
            if (PyDict_SetItem(rest, keyword, kwvalues[i]) < 0)
                return -1;
            continue;
        }
        if (at < 0 || values[at] != NULL)
            return 0;
        values[at] = Py_NewRef(kwvalues[i]);
    }
    return 1;
}

static int bind_defaults(const PyCodeObject *code, PyObject *fn, PyObject **values)
{
    PyObject *defaults = PyFunction_GET_DEFAULTS(fn);
    Py_ssize_t n_defaults = defaults != NULL ? PyTuple_GET_SIZE(defaults) : 0;
    Py_ssize_t first = code->co_argcount - n_defaults;
    for (Py_ssize_t i = 0; i < code->co_argcount; i++) {
        if (values[i] != NULL)
            continue;
        if (i < first)
            return 0;
        values[i] = Py_NewRef(PyTuple_GET_ITEM(defaults, i - first));
    }
    return 1;
}

static int bind_keyword_defaults(const PyCodeObject *code, PyObject *fn, PyObject **values)
{
    PyObject *defaults = PyFunction_GET_KW_DEFAULTS(fn);
    for (Py_ssize_t i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        if (values[i] != NULL)
            continue;
        PyObject *value =
            defaults != NULL ? PyDict_GetItemWithError(defaults, parameter_name(code, i)) : NULL;
        if (value == NULL)
            return PyErr_Occurred() ? -1 : 0;
        values[i] = Py_NewRef(value);
    }
    return 1;
}

/* 1: `bound` is filled; 0: the arguments do not fit; -1: exception. Always ends with unbind(). */
static int bind(PyObject *fn, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Bound *bound)
{
    const PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(fn);
    Py_ssize_t n = flat_count(code);
    bound->n = 0;
    bound->values = bound->small;
    if (n > SMALL && (bound->values = PyMem_Malloc((size_t)n * sizeof(PyObject *))) == NULL)
        return PyErr_NoMemory(), -1;
    bound->n = n;
    if (kwnames == NULL && n == nargs && n == code->co_argcount) {
        for (Py_ssize_t i = 0; i < n; i++)
            bound->values[i] = Py_NewRef(args[i]);
        return 1;
    }
    memset(bound->values, 0, (size_t)n * sizeof(PyObject *));
    int done = bind_positional(code, args, nargs, bound->values);
    if (done == 1)
        done = bind_keywords(code, args + nargs, kwnames, bound->values);
    if (done == 1)
        done = bind_defaults(code, fn, bound->values);
    return done == 1 ? bind_keyword_defaults(code, fn, bound->values) : done;
}

/* ---- calling ------------------------------------------------------------------------------------ */

/* The cache of the function's current code object; NULL with an exception. */
static CodeCache *present_cache(CompiledFunction *self)
{
    PyObject *code = PyFunction_GET_CODE(self->fn);
    if (self->cache != NULL && self->cache->code == code)
        return self->cache;
    CodeCache *cache = code_cache_get(code);
    if (cache == NULL)
        return NULL;
    code_cache_own(cache);
    Py_XSETREF(self->cache, cache);
    Py_CLEAR(self->used.entries);
    return cache;
}

/* Lets go of entries that were forgotten since. */
static void refresh(CompiledFunction *self, const CodeCache *cache)
{
    if (self->used.clears == cache->clears)
        return;
    self->used.clears = cache->clears;
    self->is_frozen = 0;
    Py_CLEAR(self->used.entries);
}

/* After the search among the entries that it used. */
static int find_other_entry(CompiledFunction *self, CodeCache *cache, const FrameValues *frame,
                            Entry **entry, PyObject **collected)
{
    PyObject *owner = on_miss_owner(self->on_miss);
    int found = code_cache_search_others(cache, owner, &self->used, frame, entry, collected);
    if (found == 0 && code_cache_may_compile(cache, owner))
        found = code_cache_miss(self->on_miss, (PyObject *)self, self->fn, cache->code, frame, entry,
                                collected);
    if (found == 1 && used_entries_add(&self->used, *entry) < 0)
        PyErr_Clear(); /* only the order */
    return found;
}

/* 1: *entry and *collected are set; 0: run eagerly; -1: exception. */
static int find_entry(CompiledFunction *self, CodeCache *cache, const Bound *bound, Entry **entry,
                      PyObject **collected)
{
    FrameValues frame = {
        .locals = bound->values,
        .n_locals = bound->n,
        .closure = PyFunction_GET_CLOSURE(self->fn),
        .globals = PyFunction_GET_GLOBALS(self->fn),
    };
    refresh(self, cache);
    int found = used_entries_search(&self->used, &frame, entry, collected);
    return found != 0 || self->is_frozen ? found
                                         : find_other_entry(self, cache, &frame, entry, collected);
}

/* Lets go of a continuation's arguments. If another continuation follows, the replacement holds what
 * must live until then, and the program may have deleted the rest; else variables live to the end. */
static void release_arguments(const Entry *entry, PyObject **args, Py_ssize_t n)
{
    if (!entry->needs_hook) {
        drop_tensors(args, n);
        return;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        Py_CLEAR(args[i]);
}

/* What a stance has called instead (new reference); None: the compiled function itself. */
static PyObject *other_under(Stance stance, CompiledFunction *self)
{
    return stance == STANCE_EAGER ? Py_NewRef(self->fn) : stance_redirect((PyObject *)self);
}

PyObject *compiled_call_once(PyObject *callable, PyObject **args, Py_ssize_t nargs, PyObject *kwnames,
                             bool steal)
{
    CompiledFunction *self = (CompiledFunction *)callable;
    Bound bound;
    Entry *entry = NULL;
    PyObject *collected = NULL, *result = NULL, *signal = NULL;
    if (thread_is_debugged(PyThreadState_Get())) /* its frame, with its variables and lines */
        return PyObject_Vectorcall(self->fn, args, (size_t)nargs, kwnames);
    Stance stance = hook_stance();
    if (stance != STANCE_COMPILE) {
        PyObject *other = other_under(stance, self);
        if (other == NULL)
            return NULL;
        if (other != Py_None) {
            result = PyObject_Vectorcall(other, args, (size_t)nargs, kwnames);
            Py_DECREF(other);
            return result;
        }
        Py_DECREF(other);
    }
    CodeCache *cache = present_cache(self);
    if (cache == NULL)
        return NULL;
    Py_INCREF(cache);
    int found = 0;
    if (!cache->skip) {
        found = bind(self->fn, args, nargs, kwnames, &bound);
        bool fits = found == 1;
        if (fits)
            found = find_entry(self, cache, &bound, &entry, &collected);
        unbind(&bound);
        if (found == 0 && !fits) { /* raises the TypeError */
            Py_DECREF(cache);
            return PyObject_Vectorcall(self->fn, args, (size_t)nargs, kwnames);
        }
    }
    if (found == 1) {
        if (steal && !entry->may_rerun)
            release_arguments(entry, args, nargs);
        result = entry_call(entry, collected, self->on_miss);
        Py_DECREF(entry);
        signal = rerun_signal(result);
    }
    if (found == 0 || signal != NULL)
        result = hook_run_eagerly(self->fn, cache->code, cache->unhooked ? NULL : self->on_miss, args,
                                  nargs, kwnames, steal);
    if (signal != NULL)
        result = rerun_done(result, signal);
    Py_DECREF(cache);
    return result;
}

static PyObject *compiled_call(PyObject *callable, PyObject *const *args, size_t nargsf,
                               PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    return tail_calls_run(compiled_call_once(callable, (PyObject **)args, nargs, kwnames, false));
}

/* ---- the Python type ---------------------------------------------------------------------------- */

static PyObject *compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fn", "on_miss", NULL};
    PyObject *fn, *on_miss;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:CompiledFunction", names, &PyFunction_Type, &fn,
                                     &on_miss))
        return NULL;
    if (!PyCallable_Check(on_miss))
        return PyErr_SetString(PyExc_TypeError, "CompiledFunction: on_miss is not callable"), NULL;
    CompiledFunction *self = (CompiledFunction *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = compiled_call;
    self->fn = Py_NewRef(fn);
    self->on_miss = Py_NewRef(on_miss);
    if (present_cache(self) == NULL) /* owns the code's entries from the start, called or not */
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int compiled_traverse(PyObject *object, visitproc visit, void *arg)
{
    CompiledFunction *self = (CompiledFunction *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->fn);
    Py_VISIT(self->on_miss);
    Py_VISIT(self->cache);
    Py_VISIT(self->used.entries);
    Py_VISIT(self->dict);
    return 0;
}

static int compiled_clear(PyObject *object)
{
    CompiledFunction *self = (CompiledFunction *)object;
    /* Keep `fn` and `on_miss`: the object stays callable; clearing the cache breaks the cycle. */
    Py_CLEAR(self->cache);
    Py_CLEAR(self->used.entries);
    Py_CLEAR(self->dict);
    return 0;
}

static void compiled_dealloc(PyObject *object)
{
    CompiledFunction *self = (CompiledFunction *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs(object);
    compiled_clear(object);
    Py_CLEAR(self->fn);
    Py_CLEAR(self->on_miss);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *compiled_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    if (object == NULL || object == Py_None)
        return Py_NewRef(self);
    return PyMethod_New(self, object);
}

/* Attributes that the type itself has, so that a plain lookup would not reach the function. */
static bool is_mirrored(PyObject *name)
{
    return PyUnicode_Check(name) && (PyUnicode_CompareWithASCIIString(name, "__doc__") == 0 ||
                                     PyUnicode_CompareWithASCIIString(name, "__module__") == 0);
}

/* Attributes that the object lacks are the function's: __name__, __code__, those set on it. */
static PyObject *compiled_getattro(PyObject *object, PyObject *name)
{
    CompiledFunction *self = (CompiledFunction *)object;
    if (is_mirrored(name)) {
        PyObject *own = self->dict != NULL ? PyDict_GetItemWithError(self->dict, name) : NULL;
        if (own != NULL || PyErr_Occurred())
            return Py_XNewRef(own);
        return PyObject_GetAttr(self->fn, name);
    }
    PyObject *found = PyObject_GenericGetAttr(object, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GetAttr(self->fn, name);
}

static PyObject *compiled_repr(PyObject *object)
{
    return PyUnicode_FromFormat("<compiled %R>", ((CompiledFunction *)object)->fn);
}

/* Pickled by name and copied as itself, as Python functions are. */
static PyObject *compiled_reduce(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return PyObject_GetAttrString(((CompiledFunction *)object)->fn, "__qualname__");
}

/* The entries that its calls have used. */
static PyObject *compiled_used(PyObject *object, void *Py_UNUSED(unused))
{
    CompiledFunction *self = (CompiledFunction *)object;
    if (self->cache != NULL)
        refresh(self, self->cache);
    return self->used.entries != NULL ? PySequence_List(self->used.entries) : PyList_New(0);
}

static PyObject *compiled_freeze(PyObject *object, PyObject *Py_UNUSED(unused))
{
    ((CompiledFunction *)object)->is_frozen = 1;
    Py_RETURN_NONE;
}

static PyObject *compiled_forget(PyObject *object, PyObject *Py_UNUSED(nothing))
{
    CompiledFunction *self = (CompiledFunction *)object;
    self->is_frozen = 0;
    Py_CLEAR(self->used.entries);
    Py_RETURN_NONE;
}

static PyMethodDef compiled_methods[] = {
    {"forget_entries", compiled_forget, METH_NOARGS,
     PyDoc_STR("Let go of the entries that were used.")},
    {"freeze_entries", compiled_freeze, METH_NOARGS,
     PyDoc_STR("Keep using the entries that were used, but ask for no more.")},
    {"__reduce__", compiled_reduce, METH_NOARGS,
     PyDoc_STR("The function's name: pickled and copied as functions are.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef compiled_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"used_entries", compiled_used, NULL,
     PyDoc_STR("The entries that its calls have used, in the order in which they are tried."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef compiled_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(CompiledFunction, fn), READONLY,
     PyDoc_STR("The Python function.")},
    {"on_miss", T_OBJECT, offsetof(CompiledFunction, on_miss), READONLY,
     PyDoc_STR("Asked for an Entry when none fits.")},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CompiledFunction, vectorcall), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFunction, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CompiledFunction, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot compiled_slots[] = {
    {Py_tp_doc,
     (void *)PyDoc_STR(
         "CompiledFunction(fn, on_miss)\n--\n\n"
         "Calls `fn` through its compiled versions.\n\n"
         "When no entry of `fn.__code__` fits, calls\n"
         "`on_miss(compiled_function, function, code, locals, cells, globals)`, which gives an\n"
         "Entry, or None: `fn` is then run as it is.")},
    {Py_tp_new, compiled_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, compiled_get},
    {Py_tp_getattro, compiled_getattro},
    {Py_tp_repr, compiled_repr},
    {Py_tp_methods, compiled_methods},
    {Py_tp_members, compiled_members},
    {Py_tp_getset, compiled_getset},
    {Py_tp_traverse, compiled_traverse},
    {Py_tp_clear, compiled_clear},
    {Py_tp_dealloc, compiled_dealloc},
    {0, NULL},
};

static PyType_Spec compiled_spec = {
    .name = "weft._frame.CompiledFunction",
    .basicsize = sizeof(CompiledFunction),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = compiled_slots,
};

int compiled_function_init(PyObject *module)
{
    CompiledFunction_Type = add_type(module, &compiled_spec);
    return CompiledFunction_Type == NULL ? -1 : 0;
}
