/* Frame objects of frames that were interpreted while capturing: tracebacks refer to them. */
#include "weft_frame.h"

#include <frameobject.h>

/* frame_object(code, globals, line): a frame that is over, and ended at that line. */
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

static PyMethodDef functions[] = {
    {"frame_object", frame_object, METH_VARARGS,
     PyDoc_STR("frame_object(code, globals, line)\n--\n\n"
               "For tracebacks: a frame object of code that has no variables.")},
    {NULL, NULL, 0, NULL},
};

int frame_objects_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
