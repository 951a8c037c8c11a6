/* Tracebacks that show the program's frames: frame objects for frames that capture interpreted, and the
 * traceback of an error that leaves a replacement; which errors are no failures. */
#include "weft_frame.h"

#include <frameobject.h>

/* frame_object(code, globals, line): a finished frame that ended at that line. */
static PyObject *frame_object(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *code, *globals;
    int line;
    if (!PyArg_ParseTuple(args, "O!O!i:frame_object", &PyCode_Type, &code, &PyDict_Type, &globals,
                          &line))
        return NULL;
    PyFrameObject *frame = PyFrame_New(PyThreadState_Get(), (PyCodeObject *)code, globals, NULL);
    if (frame != NULL)
        frame->f_lineno = line;
    return (PyObject *)frame;
}

static PyObject *call_ours(PyObject *function, PyObject *const *args, Py_ssize_t n)
{
    PyThreadState *state = PyThreadState_Get();
    begin_ours(state);
    PyObject *result = PyObject_Vectorcall(function, args, (size_t)n, NULL);
    end_ours(state);
    return result;
}

/* ours(function, *args): function(*args), even if the program is at its recursion limit. */
static PyObject *ours(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    if (n < 1)
        return PyErr_SetString(PyExc_TypeError, "ours: what is to be called?"), NULL;
    return call_ours(args[0], args + 1, n - 1);
}

/* frame_arguments(frame): what its positional parameters are now, and behind them the `*args`, if there
 * are any. (f_locals would stay in the frame, with all its variables, before Python 3.13.) */
static PyObject *frame_arguments(PyObject *Py_UNUSED(module), PyObject *object)
{
    if (!PyFrame_Check(object))
        return PyErr_SetString(PyExc_TypeError, "frame_arguments: no frame"), NULL;
    Frame *frame = ((PyFrameObject *)object)->f_frame;
    PyCodeObject *code = frame_code(frame);
    int n = code->co_argcount, rest = code->co_flags & CO_VARARGS ? 1 : 0;
    PyObject *values = PyTuple_New(n + rest);
    for (int i = 0; values != NULL && i < n + rest; i++) {
        PyObject *value = frame->localsplus[i < n ? i : n + code->co_kwonlyargcount];
        if (value != NULL && PyCell_Check(value))
            value = PyCell_GET(value);
        PyTuple_SET_ITEM(values, i, Py_NewRef(value != NULL ? value : Py_None));
    }
    return values;
}

/* ---- frames of replacements that outlive their run ---------------------------------------------- */

static _Thread_local PyObject *left_frames; /* list of those that were still running; or NULL */

/* Lets go of the variables of a finished frame, last first, as Python unwinds its stack; 0 if it runs. */
static int end_frame(PyFrameObject *object)
{
    Frame *frame = object->f_frame;
    if (frame->owner != FRAME_OWNED_BY_FRAME_OBJECT)
        return 0;
    for (int i = frame_code(frame)->co_nlocals - 1; i >= 0; i--)
        Py_CLEAR(frame->localsplus[i]);
    return 1;
}

/* end_frame(frame): a traceback, or the frame that was called last, keeps a frame and so its variables.
 * Those of a replacement stand for the program's stack too, which ends with the frame. */
static PyObject *end_frame_of(PyObject *Py_UNUSED(module), PyObject *frame)
{
    if (!PyFrame_Check(frame))
        return PyErr_SetString(PyExc_TypeError, "end_frame: no frame"), NULL;
    if (!end_frame((PyFrameObject *)frame)) {
        if (left_frames == NULL && (left_frames = PyList_New(0)) == NULL)
            return NULL;
        if (PyList_Append(left_frames, frame) < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

void frames_end(void)
{
    if (left_frames == NULL)
        return;
    PyObject *error = take_exception();
    PyObject *frames = left_frames;
    left_frames = NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(frames); i++) {
        PyObject *left = end_frame_of(NULL, PyList_GET_ITEM(frames, i));
        if (left == NULL)
            PyErr_Clear();
        Py_XDECREF(left);
    }
    Py_DECREF(frames);
    if (error != NULL)
        restore_exception(error);
}

void error_end_frames(PyObject *error)
{
    PyObject *traceback = PyException_GetTraceback(error);
    for (PyTracebackObject *at = (PyTracebackObject *)traceback; at != NULL; at = at->tb_next)
        end_frame(at->tb_frame);
    Py_XDECREF(traceback);
}

/* ---- errors ------------------------------------------------------------------------------------- */

static PyObject *cleaner; /* (error, traceback) -> traceback; or NULL */

void error_clean(void)
{
    if (cleaner == NULL || PyErr_ExceptionMatches(RunEagerly))
        return;
    PyObject *error = take_exception();
    PyObject *traceback = PyException_GetTraceback(error);
    if (traceback != NULL) {
        bool paused = hook_pause(true);
        PyObject *shown = call_ours(cleaner, (PyObject *[]){error, traceback}, 2);
        hook_pause(paused);
        Py_DECREF(traceback);
        if (shown != NULL && PyException_SetTraceback(error, shown) < 0)
            PyErr_Clear();
        Py_XDECREF(shown);
        if (shown == NULL && error_absorb() < 0) {
            Py_DECREF(error); /* Ctrl-C, for example, takes its place */
            return;
        }
    }
    restore_exception(error);
}

static PyObject *outside; /* exception -> whether it was thrown in from outside; or NULL */

/* An ordinary exception makes a check fail. Others (KeyboardInterrupt, ...) propagate, and so does what
 * a signal's handler or another thread threw into the check. */
int error_absorb(void)
{
    if (!PyErr_Occurred())
        return 0;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *error = take_exception();
    PyObject *traceback = outside != NULL ? PyException_GetTraceback(error) : NULL;
    int thrown = 0; /* without a Python frame it comes from what was checked */
    if (traceback != NULL) {
        bool paused = hook_pause(true);
        PyObject *answer = call_ours(outside, &error, 1);
        hook_pause(paused);
        thrown = answer != NULL ? answer == Py_True : -1;
        Py_XDECREF(answer);
        Py_DECREF(traceback);
    }
    if (thrown > 0)
        restore_exception(error);
    else
        Py_DECREF(error);
    return thrown != 0 ? -1 : 0;
}

static PyObject *set_outside(PyObject *Py_UNUSED(module), PyObject *callable)
{
    Py_XSETREF(outside, Py_NewRef(callable));
    Py_RETURN_NONE;
}

static PyObject *set_cleaner(PyObject *Py_UNUSED(module), PyObject *callable)
{
    Py_XSETREF(cleaner, Py_NewRef(callable));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"clean_tracebacks", set_cleaner, METH_O,
     PyDoc_STR("clean_tracebacks(function)\n--\n\n"
               "The traceback of an error that leaves a replacement, or the compiler, becomes\n"
               "function(error, traceback).")},
    {"pass_on_exceptions", set_outside, METH_O,
     PyDoc_STR("pass_on_exceptions(function)\n--\n\n"
               "An exception for which the function returns True is no failed guard.")},
    {"end_frame", end_frame_of, METH_O,
     PyDoc_STR("end_frame(frame)\n--\n\n"
               "Empty the frame of a replacement: now, or when it has ended.")},
    {"frame_arguments", frame_arguments, METH_O,
     PyDoc_STR("frame_arguments(frame)\n--\n\n"
               "The values of a frame's positional parameters, then the tuple of the others.")},
    {"frame_object", frame_object, METH_VARARGS,
     PyDoc_STR("frame_object(code, globals, line)\n--\n\n"
               "For tracebacks: a frame object of code without arguments, with no variable set.")},
    {"ours", _PyCFunction_CAST(ours), METH_FASTCALL,
     PyDoc_STR("ours(function, *args)\n--\n\n"
               "function(*args), also where the program has reached its recursion limit.")},
    {NULL, NULL, 0, NULL},
};

int frame_objects_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
