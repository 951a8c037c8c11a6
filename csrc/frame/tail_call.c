/* Tail calls: a replacement ends by returning what to call next instead of calling it.
 *
 * A frame that a graph break split continues in a continuation, that one in the next, and a loop that
 * breaks in each iteration reaches thousands of them. `return tail_call(continuation, ...)` returns a
 * TailCall to the caller of the replacement, which runs them one after the other: neither the C nor the
 * Python stack grows, and what a finished piece held is freed before the next one begins. Programs
 * never see a TailCall.
 */
#include "weft_frame.h"

typedef struct {
    PyObject_VAR_HEAD
    PyObject *target;
    PyObject *on_miss; /* the hook that was on in the replacement; or NULL */
    bool gives;        /* the target takes its arguments out of this object, one by one */
    Py_ssize_t given;
    PyObject *args[1];
} TailCall;

PyTypeObject *TailCall_Type;
PyObject *RunEagerly;

static PyObject *make(PyObject *const *args, Py_ssize_t n, bool gives)
{
    if (n < 1)
        return PyErr_SetString(PyExc_TypeError, "tail_call: what is to be called?"), NULL;
    TailCall *self = PyObject_NewVar(TailCall, TailCall_Type, n);
    if (self == NULL)
        return NULL;
    self->target = Py_NewRef(args[0]);
    self->on_miss = Py_XNewRef(hook_current());
    self->gives = gives && n > 1;
    self->given = 0;
    for (Py_ssize_t i = 1; i < n; i++)
        self->args[i - 1] = Py_NewRef(args[i]);
    return (PyObject *)self;
}

static PyObject *tail_call(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    return make(args, n, false);
}

static PyObject *giving_tail_call(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    return make(args, n, true);
}

static PyObject *give_next(PyObject *object)
{
    TailCall *self = (TailCall *)object;
    if (self->given >= Py_SIZE(self) - 1)
        return NULL;
    PyObject *arg = self->args[self->given];
    self->args[self->given++] = NULL;
    return arg;
}

/* Moves the content to a new object: the caller of `finish` holds the old one until that returns, and
 * would keep alive what the rest of the program releases meanwhile. */
static PyObject *emptied(TailCall *given)
{
    Py_ssize_t n = Py_SIZE(given);
    if (given->target == NULL)
        return PyErr_SetString(PyExc_RuntimeError, "finish: it is done already"), NULL;
    TailCall *self = PyObject_NewVar(TailCall, TailCall_Type, n);
    if (self == NULL)
        return NULL;
    size_t begin = offsetof(TailCall, target), size = offsetof(TailCall, args) - begin;
    memcpy((char *)self + begin, (char *)given + begin, size + (size_t)(n - 1) * sizeof(PyObject *));
    memset(given->args, 0, (size_t)(n - 1) * sizeof(PyObject *));
    given->target = given->on_miss = NULL;
    return (PyObject *)self;
}

static PyObject *finish(PyObject *Py_UNUSED(module), PyObject *object)
{
    if (!Py_IS_TYPE(object, TailCall_Type))
        return Py_NewRef(object);
    PyObject *self = emptied((TailCall *)object);
    return self == NULL ? NULL : tail_calls_run(self);
}

static void drop_arguments(TailCall *self)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(self) - 1; i++)
        Py_CLEAR(self->args[i]);
}

static void tail_call_dealloc(PyObject *object)
{
    TailCall *self = (TailCall *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->target);
    Py_XDECREF(self->on_miss);
    drop_arguments(self);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *call(TailCall *self)
{
    Py_ssize_t n = Py_SIZE(self) - 1;
    if (Py_IS_TYPE(self->target, CompiledFunction_Type))
        return compiled_call_once(self->target, self->args, n, NULL, true);
    PyObject *previous = hook_swap(Py_XNewRef(self->on_miss));
    PyObject *itself = (PyObject *)self;
    PyObject *result = self->gives ? PyObject_CallOneArg(self->target, itself)
                                   : PyObject_Vectorcall(self->target, self->args, (size_t)n, NULL);
    Py_XDECREF(hook_swap(previous));
    return result;
}

PyObject *tail_calls_run(PyObject *result)
{
    if (result == NULL || !Py_IS_TYPE(result, TailCall_Type))
        return result;
    if (!frame_enter())
        return Py_DECREF(result), NULL;
    while (result != NULL && Py_IS_TYPE(result, TailCall_Type)) {
        TailCall *next = (TailCall *)result;
        result = call(next);
        /* An exception among them refers, by its traceback, to the replacement's frame, and that may
         * still refer to this object: a cycle that the collector does not see. */
        drop_arguments(next);
        Py_DECREF(next);
    }
    frame_leave();
    return result;
}

/* What the replacement held must not outlive the eager run's own references, whose end the program may
 * see (a generator's `finally`). */
PyObject *rerun_signal(PyObject *result)
{
    if (result != NULL || !PyErr_ExceptionMatches(RunEagerly))
        return NULL;
    PyObject *signal = take_exception();
    error_end_frames(signal);
    return signal;
}

PyObject *rerun_done(PyObject *result, PyObject *signal)
{
    PyObject *args = ((PyBaseExceptionObject *)signal)->args;
    if (result != NULL && PyTuple_GET_SIZE(args) == 2) {
        PyObject *told = PyObject_CallOneArg(PyTuple_GET_ITEM(args, 1), PyTuple_GET_ITEM(args, 0));
        if (told == NULL)
            Py_CLEAR(result);
        Py_XDECREF(told);
    }
    Py_DECREF(signal);
    return result;
}

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("What a replacement returns to go on elsewhere; see tail_call.")},
    {Py_tp_dealloc, tail_call_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, give_next},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "weft._frame.TailCall",
    .basicsize = offsetof(TailCall, args),
    .itemsize = sizeof(PyObject *),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

static PyMethodDef functions[] = {
    {"tail_call", _PyCFunction_CAST(tail_call), METH_FASTCALL,
     PyDoc_STR("tail_call(function, *args)\n--\n\n"
               "For replacements: `return tail_call(f, x)` returns f(x), without this frame.")},
    {"giving_tail_call", _PyCFunction_CAST(giving_tail_call), METH_FASTCALL,
     PyDoc_STR("giving_tail_call(function, *args)\n--\n\n"
               "As tail_call; the function is called with an iterator that gives each argument "
               "and lets go of it.")},
    {"finish", finish, METH_O,
     PyDoc_STR("finish(result)\n--\n\nThe value of a tail call; other objects are given back.")},
    {NULL, NULL, 0, NULL},
};

int tail_call_init(PyObject *module)
{
    TailCall_Type = add_type(module, &spec);
    RunEagerly = PyErr_NewExceptionWithDoc(
        "weft._frame.RunEagerly",
        "Raised by a replacement that has changed nothing yet: its frame is run as it is.\n\n"
        "RunEagerly(error, function): function(error) is called if the frame then raises nothing.",
        PyExc_BaseException, NULL);
    if (TailCall_Type == NULL || RunEagerly == NULL ||
        PyModule_AddObjectRef(module, "RunEagerly", RunEagerly) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
