/* weft._calls: makes, views and multiplies tensors for generated call sequences, with the least overhead.
 *
 * Place in the pipeline: runtime/tensor_calls.py makes these callables; call sequences call them.
 *
 *     Empty(layout, dtype, device_type, device_index, fallback)()      torch.empty_strided(...)
 *     View(layout, fallback)(x)                                        torch.as_strided(x, ...)
 *     Product(kind, operands, layout, ..., fallback)(a, b)             torch.mm(view of a, view of b)
 *
 * A *layout* is (sizes, strides, offset) of integers; None stands for a number that is passed at the call,
 * as a further argument, in that order. Offsets count from the first element of the viewed tensor.
 * No torch headers: the addresses of torch's C functions (`aoti_torch_*`) and of the function that makes
 * a tensor's Python object are passed to configure(). Nothing is checked here: the caller guarantees
 * types. If torch refuses a call, `fallback` repeats it in Python and raises torch's error.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

typedef void *Tensor; /* an at::Tensor* */

static struct {
    int32_t (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Tensor *);
    int32_t (*reinterpret)(Tensor, int64_t, const int64_t *, const int64_t *, int64_t, Tensor *);
    int32_t (*delete_tensor)(Tensor);
    int32_t (*mm_out)(Tensor, Tensor, Tensor);
    int32_t (*addmm_out)(Tensor, Tensor, Tensor, Tensor, float, float);
    int32_t (*bmm_out)(Tensor, Tensor, Tensor);
    PyObject *(*wrap)(Tensor);
} torch;

static Py_ssize_t tensor_offset; /* of the at::Tensor inside a torch.Tensor object */

static inline Tensor tensor_in(PyObject *object)
{
    return (char *)object + tensor_offset;
}

/* A Python object for a tensor that we own; it takes over the reference. */
static PyObject *wrapped(Tensor tensor)
{
    PyObject *object = torch.wrap(tensor);
    torch.delete_tensor(tensor);
    return object;
}

/* ---- layouts ------------------------------------------------------------------------------------- */

enum { MAX_DIMS = 12, MAX_NUMBERS = 2 * MAX_DIMS + 1 };

typedef struct {
    int dims;
    int dynamic;                  /* how many numbers are given at the call */
    int64_t numbers[MAX_NUMBERS]; /* sizes, strides, offset */
    uint8_t places[MAX_NUMBERS];  /* positions in `numbers` of the dynamic ones */
    bool row_major;               /* strides follow from the sizes */
} Layout;

static int read_number(Layout *layout, int place, PyObject *item)
{
    if (item == Py_None) {
        layout->places[layout->dynamic++] = (uint8_t)place;
        return 0;
    }
    layout->numbers[place] = PyLong_AsLongLong(item);
    return layout->numbers[place] == -1 && PyErr_Occurred() ? -1 : 0;
}

static int read_layout(Layout *layout, PyObject *given)
{
    PyObject *sizes, *strides, *offset;
    memset(layout, 0, sizeof *layout);
    if (!PyArg_ParseTuple(given, "O!OO", &PyTuple_Type, &sizes, &strides, &offset))
        return -1;
    Py_ssize_t dims = PyTuple_GET_SIZE(sizes);
    layout->row_major = strides == Py_None;
    if (dims > MAX_DIMS ||
        (!layout->row_major && (!PyTuple_Check(strides) || PyTuple_GET_SIZE(strides) != dims))) {
        PyErr_SetString(PyExc_ValueError, "a layout has as many strides as sizes, at most 12");
        return -1;
    }
    layout->dims = (int)dims;
    for (int i = 0; i < dims; i++)
        if (read_number(layout, i, PyTuple_GET_ITEM(sizes, i)) < 0)
            return -1;
    for (int i = 0; i < dims && !layout->row_major; i++)
        if (read_number(layout, (int)dims + i, PyTuple_GET_ITEM(strides, i)) < 0)
            return -1;
    return read_number(layout, 2 * (int)dims, offset);
}

/* The layout's numbers with those of the call filled in: the layout's own array, or `space`. */
static const int64_t *numbers_of(const Layout *layout, PyObject *const *given, int64_t *space)
{
    if (layout->dynamic == 0 && !layout->row_major)
        return layout->numbers;
    memcpy(space, layout->numbers, sizeof layout->numbers);
    for (int i = 0; i < layout->dynamic; i++) {
        space[layout->places[i]] = PyLong_AsLongLong(given[i]);
        if (space[layout->places[i]] == -1 && PyErr_Occurred())
            return NULL;
    }
    int64_t step = 1;
    for (int i = layout->dims - 1; i >= 0 && layout->row_major; i--) {
        space[layout->dims + i] = step;
        step *= space[i] > 1 ? space[i] : 1; /* as torch counts */
    }
    return space;
}

static int view_of(Tensor tensor, const Layout *layout, const int64_t *numbers, Tensor *result)
{
    const int64_t offset = numbers[2 * layout->dims]; /* torch adds the tensor's own */
    return torch.reinterpret(tensor, layout->dims, numbers, numbers + layout->dims, offset, result);
}

/* ---- the callables ------------------------------------------------------------------------------- */

enum { MAX_OPERANDS = 3 };
enum { MM, ADDMM, BMM };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *fallback;
    Layout layout; /* of the result */
    int32_t dtype, device_type, device_index;
    int kind, n_operands, n_arguments;
    bool viewed[MAX_OPERANDS];
    Layout operands[];
} Call;

static PyObject *fall_back(Call *self, PyObject *const *args, Py_ssize_t n)
{
    if (PyErr_Occurred())
        return NULL;
    return PyObject_Vectorcall(self->fallback, args, (size_t)n, NULL);
}

static PyObject *wrong_count(Py_ssize_t wanted, Py_ssize_t given)
{
    return PyErr_Format(PyExc_TypeError, "%zd arguments wanted, got %zd", wanted, given);
}

static int make_result(const Call *self, const int64_t *numbers, Tensor *result)
{
    const Layout *layout = &self->layout;
    return torch.empty_strided(layout->dims, numbers, numbers + layout->dims, self->dtype, self->device_type,
                               self->device_index, result);
}

static PyObject *empty_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *Py_UNUSED(names))
{
    Call *self = (Call *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    int64_t space[MAX_NUMBERS];
    Tensor made;
    if (n != self->layout.dynamic)
        return wrong_count(self->layout.dynamic, n);
    const int64_t *numbers = numbers_of(&self->layout, args, space);
    if (numbers == NULL || make_result(self, numbers, &made) != 0)
        return fall_back(self, args, n);
    return wrapped(made);
}

static PyObject *view_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *Py_UNUSED(names))
{
    Call *self = (Call *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    int64_t space[MAX_NUMBERS];
    Tensor made;
    if (n != 1 + self->layout.dynamic)
        return wrong_count(1 + self->layout.dynamic, n);
    const int64_t *numbers = numbers_of(&self->layout, args + 1, space);
    if (numbers == NULL || view_of(tensor_in(args[0]), &self->layout, numbers, &made) != 0)
        return fall_back(self, args, n);
    return wrapped(made);
}

static int multiply(const Call *self, Tensor result, Tensor *operands)
{
    switch (self->kind) {
    case MM:
        return torch.mm_out(result, operands[0], operands[1]);
    case ADDMM:
        return torch.addmm_out(result, operands[0], operands[1], operands[2], 1.0f, 1.0f);
    default:
        return torch.bmm_out(result, operands[0], operands[1]);
    }
}

static PyObject *product_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *Py_UNUSED(names))
{
    Call *self = (Call *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf), at = self->n_operands; /* the numbers follow the operands */
    Tensor operands[MAX_OPERANDS], views[MAX_OPERANDS], result = NULL;
    int64_t space[MAX_NUMBERS];
    int n_views = 0, status = 0;
    if (n != self->n_arguments)
        return wrong_count(self->n_arguments, n);
    for (int i = 0; i < self->n_operands && status == 0; i++) {
        const Layout *layout = &self->operands[i];
        operands[i] = tensor_in(args[i]);
        if (!self->viewed[i])
            continue;
        const int64_t *numbers = numbers_of(layout, args + at, space);
        at += layout->dynamic;
        status = numbers == NULL ? -1 : view_of(operands[i], layout, numbers, &views[n_views]);
        if (status == 0)
            operands[i] = views[n_views++];
    }
    if (status == 0) {
        const int64_t *numbers = numbers_of(&self->layout, args + at, space);
        status = numbers == NULL ? -1 : make_result(self, numbers, &result);
    }
    if (status == 0) {
        Py_BEGIN_ALLOW_THREADS
        status = multiply(self, result, operands);
        Py_END_ALLOW_THREADS
    }
    while (n_views > 0)
        torch.delete_tensor(views[--n_views]);
    if (status == 0)
        return wrapped(result);
    if (result != NULL)
        torch.delete_tensor(result);
    return fall_back(self, args, n);
}

static Call *call_new(PyTypeObject *type, vectorcallfunc run, PyObject *layout, PyObject *fallback, int n_operands)
{
    if (torch.wrap == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "weft._calls.configure() has not been called");
        return NULL;
    }
    Call *self = (Call *)type->tp_alloc(type, n_operands);
    if (self == NULL)
        return NULL;
    self->vectorcall = run;
    self->fallback = Py_NewRef(fallback);
    self->n_operands = n_operands;
    if (read_layout(&self->layout, layout) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

static PyObject *empty_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *layout, *fallback;
    int dtype, device_type, device_index;
    if (!PyArg_ParseTuple(args, "O!iiiO", &PyTuple_Type, &layout, &dtype, &device_type, &device_index, &fallback))
        return NULL;
    Call *self = call_new(type, empty_call, layout, fallback, 0);
    if (self != NULL) {
        self->dtype = dtype;
        self->device_type = device_type;
        self->device_index = device_index;
    }
    return (PyObject *)self;
}

static PyObject *view_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *layout, *fallback;
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &layout, &fallback))
        return NULL;
    return (PyObject *)call_new(type, view_call, layout, fallback, 0);
}

static int read_operands(Call *self, PyObject *operands)
{
    for (int i = 0; i < self->n_operands; i++) {
        PyObject *layout = PyTuple_GET_ITEM(operands, i);
        self->viewed[i] = layout != Py_None;
        if (self->viewed[i] && read_layout(&self->operands[i], layout) < 0)
            return -1;
        self->n_arguments += self->operands[i].dynamic;
    }
    self->n_arguments += self->n_operands + self->layout.dynamic;
    return 0;
}

static int kind_of(const char *name)
{
    return strcmp(name, "mm") == 0 ? MM : strcmp(name, "addmm") == 0 ? ADDMM : strcmp(name, "bmm") == 0 ? BMM : -1;
}

static PyObject *product_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *layout, *operands, *fallback;
    const char *name;
    int dtype, device_type, device_index;
    if (!PyArg_ParseTuple(args, "sO!O!iiiO", &name, &PyTuple_Type, &operands, &PyTuple_Type, &layout, &dtype,
                          &device_type, &device_index, &fallback))
        return NULL;
    int kind = kind_of(name);
    if (kind < 0 || PyTuple_GET_SIZE(operands) != (kind == ADDMM ? 3 : 2))
        return PyErr_Format(PyExc_ValueError, "no product %s of so many operands", name);
    Call *self = call_new(type, product_call, layout, fallback, (int)PyTuple_GET_SIZE(operands));
    if (self == NULL)
        return NULL;
    self->kind = kind;
    self->dtype = dtype;
    self->device_type = device_type;
    self->device_index = device_index;
    if (read_operands(self, operands) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int call_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((Call *)object)->fallback);
    return 0;
}

static int call_clear(PyObject *object)
{
    Py_CLEAR(((Call *)object)->fallback);
    return 0;
}

static void call_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    call_clear(object);
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef call_members[] = {
    {"fallback", T_OBJECT, offsetof(Call, fallback), READONLY, "What does the same in Python."},
    {NULL, 0, 0, 0, NULL},
};

#define CALL_TYPE(type_name, text, make)                                                             \
    {                                                                                                \
        PyVarObject_HEAD_INIT(NULL, 0)                                                               \
        .tp_name = "weft._calls." type_name, .tp_doc = text,                                         \
        .tp_basicsize = offsetof(Call, operands), .tp_itemsize = sizeof(Layout),                       \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,            \
        .tp_new = make, .tp_dealloc = call_dealloc, .tp_traverse = call_traverse,                    \
        .tp_clear = call_clear, .tp_call = PyVectorcall_Call,                                        \
        .tp_vectorcall_offset = offsetof(Call, vectorcall), .tp_members = call_members,              \
    }

static PyTypeObject empty_type =
    CALL_TYPE("Empty", "Empty(layout, dtype, device_type, device_index, fallback): makes a tensor.", empty_new);
static PyTypeObject view_type = CALL_TYPE("View", "View(layout, fallback): a tensor's memory in another layout.", view_new);
static PyTypeObject product_type =
    CALL_TYPE("Product",
              "Product(kind, operands, layout, dtype, device_type, device_index, fallback): a product of views.",
              product_new);

/* ---- the module ---------------------------------------------------------------------------------- */

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long found[7];
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "nKKKKKKK", &offset, &found[0], &found[1], &found[2], &found[3], &found[4],
                          &found[5], &found[6]))
        return NULL;
    tensor_offset = offset;
    torch.empty_strided = (void *)(uintptr_t)found[0];
    torch.reinterpret = (void *)(uintptr_t)found[1];
    torch.delete_tensor = (void *)(uintptr_t)found[2];
    torch.mm_out = (void *)(uintptr_t)found[3];
    torch.addmm_out = (void *)(uintptr_t)found[4];
    torch.bmm_out = (void *)(uintptr_t)found[5];
    torch.wrap = (void *)(uintptr_t)found[6];
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS,
     "configure(tensor_offset, empty_strided, reinterpret_tensor, delete_tensor_object,\n"
     "          mm_out, addmm_out, bmm_out, wrap): where torch's functions are."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "weft._calls", "Tensors made, viewed and multiplied without Python.", -1, methods,
    NULL, NULL, NULL, NULL,
};

static int add_type(PyObject *module, const char *name, PyTypeObject *type)
{
    return PyType_Ready(type) < 0 ? -1 : PyModule_AddObjectRef(module, name, (PyObject *)type);
}

PyMODINIT_FUNC PyInit__calls(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (add_type(module, "Empty", &empty_type) < 0 || add_type(module, "View", &view_type) < 0 ||
        add_type(module, "Product", &product_type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
