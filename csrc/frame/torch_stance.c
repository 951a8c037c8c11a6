/* The stance that a program sets with torch.compiler.set_stance, which may change between any two calls.
 *
 * It is one object in the globals of torch._dynamo.eval_frame, a module that weft never imports. So what
 * counts is sys.modules until the module is there, and from then on its globals: a call compares one word,
 * the version of that dictionary. The object is never changed but replaced.
 */
#include "weft_frame.h"

static struct {
    PyObject *module_name, *name; /* interned */
    PyObject *globals;            /* of the module; NULL: not imported so far */
    PyObject *redirect;           /* what finds another compiled function under STANCE_BACKEND; or NULL */
} stance_;

KnownStance known_stance = {{&always_zero, 1}, STANCE_COMPILE};

/* The globals of the module once it is imported, until then sys.modules. */
static PyObject *dict_that_counts(void)
{
    PyObject *modules = PyImport_GetModuleDict();
    if (stance_.globals == NULL) {
        PyObject *module = PyDict_GetItemWithError(modules, stance_.module_name);
        if (module != NULL && PyModule_Check(module))
            stance_.globals = Py_NewRef(PyModule_GetDict(module));
    }
    return stance_.globals != NULL ? stance_.globals : modules;
}

static Stance read_stance(PyObject *object)
{
    Stance says = STANCE_COMPILE;
    PyObject *name = PyObject_GetAttrString(object, "stance");
    PyObject *backend = name != NULL ? PyObject_GetAttrString(object, "backend") : NULL;
    if (name != NULL && PyUnicode_Check(name) &&
        PyUnicode_CompareWithASCIIString(name, "force_eager") == 0)
        says = STANCE_EAGER;
    else if (backend != NULL && backend != Py_None && stance_.redirect != NULL)
        says = STANCE_BACKEND;
    Py_XDECREF(name);
    Py_XDECREF(backend);
    PyErr_Clear(); /* another version's stances: those that matter at a miss are read there */
    return says;
}

Stance torch_stance_read(void)
{
    PyObject *dict = dict_that_counts();
    bool watched;
    known_stance.unchanged = dict_version(dict, &watched);
    PyObject *now = PyDict_GetItemWithError(dict, stance_.name);
    if (now == NULL || dict != stance_.globals)
        return known_stance.says = STANCE_COMPILE;
    Py_INCREF(now);
    Stance says = read_stance(now);
    Py_DECREF(now);
    return known_stance.says = says;
}

PyObject *stance_redirect(PyObject *compiled)
{
    return PyObject_CallOneArg(stance_.redirect, compiled);
}

static PyObject *set_redirect(PyObject *Py_UNUSED(module), PyObject *function)
{
    Py_XSETREF(stance_.redirect, Py_NewRef(function));
    known_stance.unchanged = ALWAYS_CHANGED;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_redirect", set_redirect, METH_O,
     PyDoc_STR("set_redirect(function)\n\n"
               "While torch's stance forces a backend, a compiled function calls\n"
               "`function(compiled_function)`: the callable to call instead, or None.")},
    {NULL, NULL, 0, NULL},
};

int torch_stance_init(PyObject *module)
{
    stance_.module_name = PyUnicode_InternFromString("torch._dynamo.eval_frame");
    stance_.name = PyUnicode_InternFromString("_stance");
    if (stance_.module_name == NULL || stance_.name == NULL)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
