/* Checks of classes: what an attribute lookup means, and which bases there are.
 *
 * They ask the class as Python does, so that any change is seen: of the class, of a base at any height, of
 * the order of the bases. CPython gives a class a new version whenever one of these changes: the memo
 * compares that alone (guard_memo.c), and asks again only when it differs.
 */
#include "weft_frame.h"

static PyObject *name_of(const Check *check)
{
    return PyTuple_GET_ITEM(check->operand, 0);
}

/* The object that a check expects: a weak reference stands for what it refers to. */
static PyObject *expected_object(PyObject *expected)
{
    return PyWeakref_CheckRef(expected) ? ((PyWeakReference *)expected)->wr_object : expected;
}

/* A descriptor of C is known by its kind, its name and the class that it was made for: it would keep
 * that class alive. `expected`: (type, name, class). */
static bool is_c_descriptor(PyObject *found, PyObject *expected)
{
    PyDescrObject *descriptor = (PyDescrObject *)found;
    return (PyObject *)Py_TYPE(found) == PyTuple_GET_ITEM(expected, 0) &&
           PyUnicode_Compare(descriptor->d_name, PyTuple_GET_ITEM(expected, 1)) == 0 &&
           (PyObject *)descriptor->d_type == expected_object(PyTuple_GET_ITEM(expected, 2));
}

/* ("class_attribute", name, expected): the lookup gives this descriptor; None: it gives nothing. */
int check_class_attribute(const Check *check, PyObject *value, PyObject *const *Py_UNUSED(slots))
{
    PyObject *expected = PyTuple_GET_ITEM(check->operand, 1);
    PyObject *found = PyType_Check(value) ? _PyType_Lookup((PyTypeObject *)value, name_of(check)) : Py_None;
    if (expected == Py_None || found == NULL)
        return found == NULL && expected == Py_None;
    if (PyTuple_Check(expected))
        return is_c_descriptor(found, expected);
    return found == expected_object(expected) && found != Py_None;
}

static PyTypeObject *defining_class(PyTypeObject *type, PyObject *name)
{
    for (Py_ssize_t i = 0; type->tp_mro != NULL && i < PyTuple_GET_SIZE(type->tp_mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(type->tp_mro, i);
        PyObject *names = class_dict(base);
        bool defines = names != NULL && PyDict_GetItemWithError(names, name) != NULL;
        Py_XDECREF(names);
        if (defines)
            return base;
    }
    return NULL;
}

/* ("class_data", name, class): that class defines the name, as an object that is no descriptor. */
int check_class_data(const Check *check, PyObject *value, PyObject *const *Py_UNUSED(slots))
{
    if (!PyType_Check(value))
        return 0;
    PyTypeObject *type = (PyTypeObject *)value;
    PyObject *found = _PyType_Lookup(type, name_of(check));
    return found != NULL && Py_TYPE(found)->tp_descr_get == NULL && Py_TYPE(found)->tp_descr_set == NULL &&
           (PyObject *)defining_class(type, name_of(check)) ==
               expected_object(PyTuple_GET_ITEM(check->operand, 1));
}

/* ("bases", (metaclass, class, base, ...)): these are the metaclass and the order of the bases. */
int check_bases(const Check *check, PyObject *value, PyObject *const *Py_UNUSED(slots))
{
    Py_ssize_t n = PyTuple_GET_SIZE(check->operand) - 1;
    PyObject *bases = PyType_Check(value) ? ((PyTypeObject *)value)->tp_mro : NULL;
    if (bases == NULL || PyTuple_GET_SIZE(bases) != n ||
        (PyObject *)Py_TYPE(value) != expected_object(PyTuple_GET_ITEM(check->operand, 0)))
        return 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (PyTuple_GET_ITEM(bases, i) != expected_object(PyTuple_GET_ITEM(check->operand, i + 1)))
            return 0;
    return 1;
}

bool is_class_check(const Check *check)
{
    return check->kind == CHECK_CLASS_ATTRIBUTE || check->kind == CHECK_CLASS_DATA ||
           check->kind == CHECK_BASES;
}

Word class_version(PyObject *type)
{
    const PyTypeObject *cls = (const PyTypeObject *)type;
    return cls->tp_version_tag == 0 ? ALWAYS_CHANGED : word_now(&cls->tp_version_tag);
}
