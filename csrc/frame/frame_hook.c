/* The frame hook: entries for nested Python frames (PEP 523).
 *
 * A thread that runs compiled code with the hook on has an `on_miss` callable; while at least one
 * thread has one, our function replaces CPython's frame evaluator. For each Python frame of such a
 * thread it looks for an entry of the frame's code object. On a hit the replacement runs instead of the
 * frame, all in C; on a miss `on_miss` is called, with the hook off. Everything else is passed on to the
 * previous evaluator: other threads, generators and coroutines, class bodies, frames being traced,
 * skipped code, and what runs below another evaluator, such as torch.compile's. The body of a module
 * (an import, `exec`) runs with the hook off, because what an import calls is not worth compiling; so
 * does a recursion from some depth on. While a frame evaluator is installed CPython does not inline
 * Python calls (each is nested in C, whose stack is smaller), so ours
 * is removed as soon as no thread needs it.
 */
#include "weft_frame.h"

typedef struct {
    PyObject *on_miss;  /* NULL: the hook is off in this thread */
    PyObject *eager;    /* code whose next frame is to be left alone (borrowed) */
    PyObject **given;   /* that frame's arguments, as long as its caller holds them too; or NULL */
    Py_ssize_t n_given;
    bool paused;        /* guards are being checked: code that they call is not compiled */
    bool forced_eager;  /* the stance "force_eager": compiled functions run the original functions */
} ThreadHook;

static _Thread_local ThreadHook thread_hook;
static Py_ssize_t hooked_threads; /* guarded by the GIL, like all that follows */
static _PyFrameEvalFunction previous_evaluator;
static bool covered; /* our function was to be removed, but another one that calls it lay on top */

static PyObject *evaluate(PyThreadState *state, Frame *frame, int throwing);

/* ---- on and off --------------------------------------------------------------------------------- */

static void install(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    /* torch.compile's evaluator, which eager torch.cond installs too, comes and goes over ours. Twice
     * in the chain, ours would call itself without end. */
    if (current == evaluate || (covered && current != previous_evaluator))
        return;
    covered = false;
    previous_evaluator = current;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
}

static void uninstall(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    /* Another evaluator may be installed on top of ours: then ours passes everything on. */
    covered = _PyInterpreterState_GetEvalFrameFunc(interpreter) != evaluate;
    if (!covered)
        _PyInterpreterState_SetEvalFrameFunc(interpreter, previous_evaluator);
}

PyObject *hook_current(void)
{
    return thread_hook.on_miss;
}

PyObject *hook_swap(PyObject *on_miss)
{
    PyObject *previous = thread_hook.on_miss;
    thread_hook.on_miss = on_miss;
    if (on_miss != NULL && previous == NULL && hooked_threads++ == 0)
        install();
    if (on_miss == NULL && previous != NULL && --hooked_threads == 0)
        uninstall();
    return previous;
}

bool hook_pause(bool paused)
{
    bool previous = thread_hook.paused;
    thread_hook.paused = paused;
    return previous;
}

/* Threads that run meanwhile below the other evaluator just run uncompiled. */
_PyFrameEvalFunction hook_set_other_aside(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current == evaluate || current == _PyEval_EvalFrameDefault)
        return NULL;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, _PyEval_EvalFrameDefault);
    return current;
}

void hook_put_back(_PyFrameEvalFunction other)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    if (other != NULL &&
        _PyInterpreterState_GetEvalFrameFunc(interpreter) == _PyEval_EvalFrameDefault)
        _PyInterpreterState_SetEvalFrameFunc(interpreter, other);
}

Stance hook_stance(void)
{
    return thread_hook.forced_eager ? STANCE_EAGER : torch_stance();
}

PyObject *hook_run_eagerly(PyObject *function, PyObject *code, PyObject *on_miss, PyObject **args,
                           Py_ssize_t nargs, PyObject *kwnames, bool steal)
{
    PyObject *previous = hook_swap(Py_XNewRef(on_miss));
    PyObject *previous_eager = thread_hook.eager;
    thread_hook.eager = code;
    thread_hook.given = steal ? args : NULL;
    thread_hook.n_given = nargs;
    PyObject *result = PyObject_Vectorcall(function, args, (size_t)nargs, kwnames);
    thread_hook.eager = previous_eager;
    thread_hook.given = NULL;
    Py_XDECREF(hook_swap(previous));
    return result;
}

/* Whether this is the frame that is to be left alone; what its caller stole for it is let go. */
static bool is_left_alone(const PyCodeObject *code)
{
    bool leave = thread_hook.eager == (PyObject *)code;
    PyObject **given = leave ? thread_hook.given : NULL;
    thread_hook.eager = NULL;
    thread_hook.given = NULL;
    for (Py_ssize_t i = 0, n = thread_hook.n_given; given != NULL && i < n; i++)
        Py_CLEAR(given[i]);
    return leave;
}

/* ---- one frame ---------------------------------------------------------------------------------- */

static PyObject *pass_on(PyThreadState *state, Frame *frame, int throwing)
{
    _PyFrameEvalFunction next = previous_evaluator;
    if (next == NULL || next == evaluate)
        next = _PyEval_EvalFrameDefault;
    return next(state, frame, throwing);
}

/* Whether another evaluator lies on top of ours: it would also see the code that compiles a frame. */
static bool is_below_another(const PyThreadState *state)
{
    return _PyInterpreterState_GetEvalFrameFunc(state->interp) != evaluate;
}

static Py_ssize_t count_parameters(const PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

/* Whether the frame is the start of a plain function call. */
static bool is_plain_call(const Frame *frame, const PyCodeObject *code)
{
    enum {
        FUNCTION = CO_OPTIMIZED | CO_NEWLOCALS,
        SUSPENDABLE = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE,
    };
    return frame->owner == FRAME_OWNED_BY_THREAD && frame->f_locals == NULL &&
           (code->co_flags & (FUNCTION | SUSPENDABLE)) == FUNCTION;
}

static bool is_module_body(const PyCodeObject *code)
{
    return !(code->co_flags & CO_OPTIMIZED) &&
           PyUnicode_CompareWithASCIIString(code->co_name, "<module>") == 0;
}

static PyObject *pass_on_unhooked(PyThreadState *state, Frame *frame)
{
    PyObject *previous = hook_swap(NULL);
    PyObject *result = pass_on(state, frame, 0);
    Py_XDECREF(hook_swap(previous)); /* also if the body left a hook on */
    return result;
}

/* Whether the frame and what it calls are left to the interpreter. */
static bool is_unhooked(PyCodeObject *code)
{
    const CodeCache *cache = code_cache_find((PyObject *)code);
    return cache != NULL && cache->unhooked;
}

/* 1: *entry and *collected are set; 0: leave the frame to the interpreter; -1: exception. */
static int find_entry(Frame *frame, PyCodeObject *code, Entry **entry, PyObject **collected)
{
    PyObject *function = frame_function(frame);
    CodeCache *cache = code_cache_find((PyObject *)code);
    FrameValues values = {
        .locals = frame->localsplus,
        .n_locals = count_parameters(code),
        .closure = PyFunction_GET_CLOSURE(function),
        .globals = frame->f_globals,
    };
    int found = 0;
    if (cache != NULL) {
        if (cache->skip)
            return 0;
        PyObject *owner = Py_NewRef(on_miss_owner(thread_hook.on_miss));
        Py_INCREF(cache);
        found = code_cache_search(cache, owner, &values, entry, collected);
        bool may_compile = code_cache_may_compile(cache, owner);
        Py_DECREF(cache);
        Py_DECREF(owner);
        if (found != 0 || !may_compile)
            return found;
    }
    PyObject *on_miss = thread_hook.on_miss;
    if (on_miss == NULL)
        return 0; /* a guard turned the hook off */
    Py_INCREF(on_miss);
    found = code_cache_miss(on_miss, NULL, function, (PyObject *)code, &values, entry, collected);
    Py_DECREF(on_miss);
    return found;
}

static PyObject *evaluate(PyThreadState *state, Frame *frame, int throwing)
{
    PyCodeObject *code = frame_code(frame);
    if (thread_hook.on_miss == NULL || thread_hook.paused || throwing || code == NULL ||
        thread_is_traced(state) || is_below_another(state) || hook_stance() != STANCE_COMPILE)
        return pass_on(state, frame, throwing);
    if (is_module_body(code) || is_deep_in_c(state))
        return pass_on_unhooked(state, frame);
    if (!is_plain_call(frame, code))
        return pass_on(state, frame, throwing);
    if (thread_hook.eager != NULL && is_left_alone(code))
        return pass_on(state, frame, throwing);
    Entry *entry = NULL;
    PyObject *collected = NULL;
    int found = find_entry(frame, code, &entry, &collected);
    if (found == 0)
        return is_unhooked(code) ? pass_on_unhooked(state, frame) : pass_on(state, frame, throwing);
    PyObject *result = NULL;
    if (found == 1) {
        PyObject *on_miss = Py_XNewRef(thread_hook.on_miss);
        bool may_rerun = entry->may_rerun;
        if (!may_rerun)
            drop_tensors(frame->localsplus, count_parameters(code));
        result = entry_call(entry, collected, on_miss);
        Py_XDECREF(on_miss);
        Py_DECREF(entry);
        PyObject *signal = rerun_signal(result);
        if (signal != NULL)
            return rerun_done(pass_on(state, frame, throwing), signal);
        if (may_rerun)
            drop_tensors(frame->localsplus, count_parameters(code));
        result = tail_calls_run(result);
    }
    frame_discard(state, frame);
    return result;
}

/* ---- hook(on_miss) and unhooked() as context managers ------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *on_miss; /* NULL for unhooked() */
    PyObject *outer;   /* list of the previous hooks, one for each enter: None or an on_miss */
} Context;

PyTypeObject *Hook_Type;
PyTypeObject *Unhooked_Type;

static PyObject *context_enter(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Context *self = (Context *)object;
    PyObject *previous = thread_hook.on_miss;
    if (PyList_Append(self->outer, previous != NULL ? previous : Py_None) < 0)
        return NULL;
    Py_XDECREF(hook_swap(Py_XNewRef(self->on_miss)));
    return Py_NewRef(object);
}

static PyObject *context_exit(PyObject *object, PyObject *Py_UNUSED(args))
{
    Context *self = (Context *)object;
    Py_ssize_t n = PyList_GET_SIZE(self->outer);
    if (n == 0)
        return PyErr_SetString(PyExc_RuntimeError, "exit without enter"), NULL;
    PyObject *outer = Py_NewRef(PyList_GET_ITEM(self->outer, n - 1));
    if (PyList_SetSlice(self->outer, n - 1, n, NULL) < 0) {
        Py_DECREF(outer);
        return NULL;
    }
    if (outer == Py_None)
        Py_CLEAR(outer);
    Py_XDECREF(hook_swap(outer));
    Py_RETURN_FALSE;
}

static PyObject *context_new(PyTypeObject *type, PyObject *on_miss)
{
    Context *self = (Context *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->on_miss = Py_XNewRef(on_miss);
    self->outer = PyList_New(0);
    if (self->outer == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"on_miss", NULL};
    PyObject *on_miss;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:hook", names, &on_miss))
        return NULL;
    if (!PyCallable_Check(on_miss))
        return PyErr_SetString(PyExc_TypeError, "hook: on_miss is not callable"), NULL;
    return context_new(type, on_miss);
}

static PyObject *unhooked_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":unhooked", names))
        return NULL;
    return context_new(type, NULL);
}

static int context_traverse(PyObject *object, visitproc visit, void *arg)
{
    Context *self = (Context *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->on_miss);
    Py_VISIT(self->outer);
    return 0;
}

static int context_clear(PyObject *object)
{
    Context *self = (Context *)object;
    Py_CLEAR(self->on_miss);
    Py_CLEAR(self->outer);
    return 0;
}

static PyMethodDef context_methods[] = {
    {"__enter__", context_enter, METH_NOARGS, NULL},
    {"__exit__", context_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

#define CONTEXT_SLOTS(new, doc) \
    {                                                                                              \
        {Py_tp_doc, (void *)PyDoc_STR(doc)}, {Py_tp_new, new}, {Py_tp_methods, context_methods},   \
            {Py_tp_traverse, context_traverse}, {Py_tp_clear, context_clear},                      \
            {Py_tp_dealloc, dealloc_by_clear}, {0, NULL},                                          \
    }

static PyType_Slot hook_slots[] = CONTEXT_SLOTS(
    hook_new,
    "hook(on_miss)\n--\n\n"
    "Context: this thread's Python frames are run through their compiled versions.\n\n"
    "When no entry of a frame's code fits, calls\n"
    "`on_miss(None, function, code, locals, cells, globals)`, which gives an Entry or None.\n"
    "Generators, coroutines, traced frames and class bodies are left alone; while the body of a\n"
    "module runs (an import, exec), the hook is off. Nests.");

static PyType_Slot unhooked_slots[] = CONTEXT_SLOTS(
    unhooked_new, "unhooked()\n--\n\nContext: the hook is off in this thread. Nests.");

#define CONTEXT_SPEC(python_name, type_slots) \
    {                                                                                              \
        .name = python_name, .basicsize = sizeof(Context),                                         \
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,               \
        .slots = type_slots,                                                                       \
    }

static PyType_Spec hook_spec = CONTEXT_SPEC("weft._frame.hook", hook_slots);
static PyType_Spec unhooked_spec = CONTEXT_SPEC("weft._frame.unhooked", unhooked_slots);

static PyObject *frame_is_hooked(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(thread_hook.on_miss != NULL);
}

static PyObject *frame_is_installed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == evaluate);
}

static PyObject *frame_force_eager(PyObject *Py_UNUSED(module), PyObject *flag)
{
    int wanted = PyObject_IsTrue(flag);
    if (wanted < 0)
        return NULL;
    bool previous = thread_hook.forced_eager;
    thread_hook.forced_eager = wanted;
    return PyBool_FromLong(previous);
}

static PyMethodDef functions[] = {
    {"force_eager", frame_force_eager, METH_O,
     PyDoc_STR("force_eager(flag) -> previous flag\n\n"
               "While set, this thread runs compiled functions and frames as plain Python.")},
    {"is_hooked", frame_is_hooked, METH_NOARGS,
     PyDoc_STR("is_hooked() -> bool\n\nWhether the hook is on in this thread.")},
    {"is_installed", frame_is_installed, METH_NOARGS,
     PyDoc_STR("is_installed() -> bool\n\nWhether our frame evaluator is installed, for any thread.")},
    {NULL, NULL, 0, NULL},
};

int frame_hook_init(PyObject *module)
{
    Hook_Type = add_type(module, &hook_spec);
    Unhooked_Type = add_type(module, &unhooked_spec);
    if (Hook_Type == NULL || Unhooked_Type == NULL)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
