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
