/* weft._frame: guards, compiled functions and the frame hook, in C.
 *
 * Place in the pipeline: below everything; capture/ builds GuardTrees and Entries, and this module
 * decides at each call whether one of them fits. It uses CPython's C API only (no torch headers) and
 * can be imported without torch. A reader starts with weft_frame.h, which lists the files in order.
 */
#include "weft_frame.h"

PyTypeObject *add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddType(module, type) < 0)
        Py_CLEAR(type);
    return type;
}

void dealloc_by_clear(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    type->tp_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *module_global_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return global_state_now();
}

static PyObject *module_tensor_access(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return tensor_access_describe();
}

static PyObject *module_is_lazy(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    int lazy = tensor_is_lazy(tensor);
    return lazy < 0 ? NULL : PyBool_FromLong(lazy);
}

/* The type and dispatch keys of tensors that `note_plain_run` got last. */
static PyTypeObject *plain_type;
static uint64_t plain_tensor_keys;

static PyObject *module_note_plain_run(PyObject *Py_UNUSED(module), PyObject *const *tensors, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (tensor_keys(tensors[i], &plain_tensor_keys)) {
            Py_INCREF(Py_TYPE(tensors[i]));
            Py_XSETREF(plain_type, Py_TYPE(tensors[i]));
            note_plain_thread();
        }
    Py_RETURN_NONE;
}

static PyObject *module_is_plain_run(PyObject *Py_UNUSED(module), PyObject *const *tensors, Py_ssize_t n)
{
    uint64_t keys;
    for (Py_ssize_t i = 0; i < n; i++)
        if (Py_TYPE(tensors[i]) != plain_type || !tensor_keys(tensors[i], &keys) || keys != plain_tensor_keys)
            Py_RETURN_FALSE;
    return PyBool_FromLong(is_plain_thread());
}

static PyObject *module_instance_dict(PyObject *Py_UNUSED(module), PyObject *object)
{
    return PyObject_GenericGetDict(object, NULL);
}

static PyMethodDef functions[] = {
    {"instance_dict", module_instance_dict, METH_O,
     PyDoc_STR("instance_dict(object) -> dict\n\n"
               "The dictionary of its attributes, also where the class defines another `__dict__`.\n"
               "AttributeError: it has none.")},
    {"global_state", module_global_state, METH_NOARGS,
     PyDoc_STR("global_state() -> GlobalState\n\nTorch's global modes now, for a guard.")},
    {"is_lazy", module_is_lazy, METH_O,
     PyDoc_STR("is_lazy(tensor) -> bool\n\n"
               "Whether its memory does not hold its numbers: they are to be conjugated or negated\n"
               "when they are read, or are zeros without memory.")},
    {"note_plain_run", (PyCFunction)(void (*)(void))module_note_plain_run, METH_FASTCALL,
     PyDoc_STR("note_plain_run(*tensors)\n\n"
               "These tensors, and the modes of this thread, are those of a plain run of the autograd\n"
               "engine: the next ones like them are known by `is_plain_run`.")},
    {"is_plain_run", (PyCFunction)(void (*)(void))module_is_plain_run, METH_FASTCALL,
     PyDoc_STR("is_plain_run(*tensors) -> bool\n\n"
               "Whether gradients are off, and the tensors and modes are as those noted last.")},
    {"tensor_access", module_tensor_access, METH_NOARGS,
     PyDoc_STR("tensor_access() -> dict\n\n"
               "Whether tensors are read directly ('direct'), and the offsets found.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "weft._frame",
    .m_doc = PyDoc_STR("Guards, compiled functions and the frame hook."),
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__frame(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (storage_overlap_init(module) < 0 || global_state_init(module) < 0 || guards_init(module) < 0 ||
        code_cache_init(module) < 0 || frame_hook_init(module) < 0 ||
        on_miss_init(module) < 0 || compiled_function_init(module) < 0 || tail_call_init(module) < 0 ||
        frame_objects_init(module) < 0 || torch_stance_init(module) < 0)
        Py_CLEAR(module);
    return module;
}
