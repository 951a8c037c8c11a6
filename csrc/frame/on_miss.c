/* OnMiss: what is asked for an entry when none fits, and the settings that its entries are for.
 *
 * Nested frames are found by their code object, whoever runs them: two compilations with other settings
 * (another backend, say) must not get each other's entries. An entry carries its owner, any object that
 * stands for the settings; it is tried only where the hook's OnMiss, or that of the compiled function,
 * has the same one.
 */
#include "weft_frame.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;
    PyObject *owner;
} OnMiss;

PyTypeObject *OnMiss_Type;

PyObject *on_miss_owner(PyObject *on_miss)
{
    return Py_IS_TYPE(on_miss, OnMiss_Type) ? ((OnMiss *)on_miss)->owner : Py_None;
}

static PyObject *on_miss_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return PyObject_Vectorcall(((OnMiss *)object)->function, args, nargsf, kwnames);
}

static PyObject *on_miss_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "owner", NULL};
    PyObject *function, *owner;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:OnMiss", names, &function, &owner))
        return NULL;
    if (!PyCallable_Check(function))
        return PyErr_SetString(PyExc_TypeError, "OnMiss: function is not callable"), NULL;
    OnMiss *self = (OnMiss *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = on_miss_call;
    self->function = Py_NewRef(function);
    self->owner = Py_NewRef(owner);
    return (PyObject *)self;
}

static int on_miss_traverse(PyObject *object, visitproc visit, void *arg)
{
    OnMiss *self = (OnMiss *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->function);
    Py_VISIT(self->owner);
    return 0;
}

/* Nothing is cleared: it stays callable, and those who hold it let it go. */
static void on_miss_dealloc(PyObject *object)
{
    OnMiss *self = (OnMiss *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->function);
    Py_CLEAR(self->owner);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMemberDef on_miss_members[] = {
    {"function", T_OBJECT, offsetof(OnMiss, function), READONLY, PyDoc_STR("What is called.")},
    {"owner", T_OBJECT, offsetof(OnMiss, owner), READONLY, PyDoc_STR("Stands for the settings.")},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(OnMiss, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot on_miss_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("OnMiss(function, owner)\n--\n\n"
                                  "`function`, whose entries are for the settings `owner`.")},
    {Py_tp_new, on_miss_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, on_miss_members},
    {Py_tp_traverse, on_miss_traverse},
    {Py_tp_dealloc, on_miss_dealloc},
    {0, NULL},
};

static PyType_Spec on_miss_spec = {
    .name = "weft._frame.OnMiss",
    .basicsize = sizeof(OnMiss),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = on_miss_slots,
};

int on_miss_init(PyObject *module)
{
    OnMiss_Type = add_type(module, &on_miss_spec);
    return OnMiss_Type == NULL ? -1 : 0;
}
