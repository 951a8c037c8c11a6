/* Torch's global modes as one value that is cheap to compare.
 *
 * A captured graph is only valid under the modes it was captured in: grad mode, inference mode,
 * autocast, dispatch and function modes, default dtype, deterministic algorithms, TF32. Each is read
 * by an exported C++ function or thread-local of libtorch, called by its linker name (plain functions
 * of plain types), in a few nanoseconds. If a version of torch lacks one of them, a Python function
 * that reads the same modes is used instead.
 */
#include "weft_frame.h"

enum { N_AUTOCAST_DEVICES = 3, OFF = -1 };
enum { BACKEND_CUDA = 1, OPERATION_MATMUL = 3 }; /* at::Float32Backend, at::Float32Op */
static const int8_t autocast_devices[N_AUTOCAST_DEVICES] = {0, 1, 12}; /* cpu, cuda, xpu */

/* Read at each check. */
typedef struct {
    uint64_t included, excluded; /* dispatch keys of this thread: inference mode, autocast on or off,
                                    dispatch modes present or not, functorch levels, ... */
    int64_t function_modes;      /* depth of the __torch_function__ mode stack */
    int8_t function_disabled;
    int8_t grad, default_dtype, deterministic, matmul_precision;
    uint8_t flush_denormal;      /* of this thread's floating-point unit */
} Core;

/* Read only if the core says that one of these modes is on. */
typedef struct {
    int64_t dispatch_modes;              /* depth of the __torch_dispatch__ mode stack */
    int8_t autocast[N_AUTOCAST_DEVICES]; /* dtype code, or OFF */
    int8_t autocast_cache;
    int8_t deterministic_warn, deterministic_fill;
} Details;

typedef struct {
    PyObject_HEAD
    Core core;
    Details details;
    bool detailed;   /* whether any of the modes in `details` is on */
    PyObject *modes; /* what these cannot say, or NULL: see PYTHON_STATE */
} GlobalState;

PyTypeObject *GlobalState_Type;

static struct {
    bool tried;
    bool native; /* every function below was found */
    bool torch;  /* torch is there at all */
    PyObject *python_state;
    PyObject *python_modes;
    bool (*grad)(void);
    int8_t (*default_dtype)(void);
    int64_t (*function_stack)(void);
    int64_t (*dispatch_stack)(void);
    int8_t (*function_disabled)(void);
    bool (*autocast_enabled)(int8_t device);
    int8_t (*autocast_dtype)(int8_t device);
    bool (*autocast_cache)(void);
    void *context;
    bool (*deterministic)(void *context);
    bool (*deterministic_warn)(void *context);
    bool (*deterministic_fill)(void *context);
    int (*float32_precision)(void *context, int backend, int operation); /* may be absent */
    uint64_t dense; /* what all devices' keys have in common: PyTorch leaves it in the included keys
                       behind an in-place operator of a wrapper subclass, where it says nothing */
} torch_;

static const char PYTHON_STATE[] =
    "import torch\n"
    "from torch._C import _get_fp32_precision_getter as precision\n"
    "from torch.overrides import _get_current_function_mode_stack as stack\n"
    "from torch.utils._device import DeviceContext\n"
    "def python_modes():\n"
    "    return tuple((type(m), m.device) if type(m) is DeviceContext else m for m in stack())\n"
    "def python_state():\n"
    "    cast = tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d))\n"
    "                 for d in ('cpu', 'cuda'))\n"
    "    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), cast,\n"
    "            torch.is_autocast_cache_enabled(), torch.get_default_dtype(), python_modes(),\n"
    "            torch._C._len_torch_dispatch_stack(), torch._C._is_torch_function_enabled(),\n"
    "            torch.are_deterministic_algorithms_enabled(),\n"
    "            torch.is_deterministic_algorithms_warn_only_enabled(),\n"
    "            precision('cuda', 'matmul'), precision('mkldnn', 'matmul'))\n"
    "keys = [torch._C.DispatchKeySet(k).raw_repr() for k in (torch._C.DispatchKey.CPU,\n"
    "                                                        torch._C.DispatchKey.CUDA)]\n"
    "dense = keys[0] & keys[1]\n";

static bool find(void *pointer_to_function, const char *mangled)
{
    void *found = torch_symbol(mangled);
    memcpy(pointer_to_function, &found, sizeof(found));
    return found != NULL;
}

static bool find_context(void)
{
    void *(*global_context)(void);
    if (!find(&global_context, "_ZN2at13globalContextEv"))
        return false;
    torch_.context = global_context();
    return true;
}

static bool find_native(void)
{
    return find(&torch_.grad, "_ZN3c108GradMode10is_enabledEv") &&
           find(&torch_.default_dtype, "_ZN3c1031get_default_dtype_as_scalartypeEv") &&
           find(&torch_.function_stack, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv") &&
           find(&torch_.dispatch_stack, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv") &&
           find(&torch_.function_disabled,
                "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv") &&
           find(&torch_.autocast_enabled,
                "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE") &&
           find(&torch_.autocast_dtype, "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE") &&
           find(&torch_.autocast_cache, "_ZN2at8autocast25is_autocast_cache_enabledEv") &&
           find_context() &&
           find(&torch_.deterministic, "_ZNK2at7Context23deterministicAlgorithmsEv") &&
           find(&torch_.deterministic_warn, "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv") &&
           find(&torch_.deterministic_fill,
                "_ZNK2at7Context36deterministicFillUninitializedMemoryEv");
}

/* The dispatch keys that this thread includes and excludes: two words. The address of a thread-local
 * never changes during the thread's life, so it is looked up once per thread. */
static const uint64_t *local_keys(void)
{
    static const uint64_t none[2] = {0, 0};
    static _Thread_local const uint64_t *mine;
    if (mine == NULL) {
        mine = torch_symbol("_ZN3c104impl26raw_local_dispatch_key_setE");
        if (mine == NULL)
            mine = none;
    }
    return mine;
}

static int find_torch(void)
{
    torch_.tried = true;
    PyObject *names = PyDict_New();
    if (names == NULL)
        return -1;
    PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins());
    PyObject *done = PyRun_String(PYTHON_STATE, Py_file_input, names, names);
    if (done == NULL) {
        bool absent = PyErr_ExceptionMatches(PyExc_ImportError);
        Py_DECREF(names);
        if (!absent)
            return -1;
        PyErr_Clear(); /* without torch there are no modes */
        return 0;
    }
    Py_DECREF(done);
    torch_.torch = true;
    torch_.python_modes = Py_XNewRef(PyDict_GetItemString(names, "python_modes"));
    torch_.python_state = Py_XNewRef(PyDict_GetItemString(names, "python_state"));
    torch_.dense = PyLong_AsUnsignedLongLong(PyDict_GetItemString(names, "dense"));
    torch_.native = find_native();
    find(&torch_.float32_precision,
         "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE");
    Py_DECREF(names);
    return 0;
}

/* The keys of this thread in a run of the autograd engine that asks for nothing special, as
 * `note_plain_thread` found them. */
static uint64_t plain_keys[2];
static bool plain_known;

void note_plain_thread(void)
{
    const uint64_t *keys = local_keys();
    plain_keys[0] = keys[0];
    plain_keys[1] = keys[1];
    plain_known = torch_.native;
}

bool is_plain_thread(void)
{
    const uint64_t *keys = local_keys();
    return plain_known && keys[0] == plain_keys[0] && keys[1] == plain_keys[1] && !torch_.grad();
}

/* Whether subnormal numbers count as zeros, as `torch.set_flush_denormal` sets it. */
static uint8_t flushes_denormals(void)
{
#if defined(__x86_64__)
    return (__builtin_ia32_stmxcsr() & 0x8040) != 0; /* flush to zero, denormals are zeros */
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return (control >> 24 & 1) != 0;
#else
    return 0;
#endif
}

static void read_core(Core *core)
{
    memset(core, 0, sizeof(*core)); /* compared as memory, padding included */
    core->flush_denormal = flushes_denormals();
    if (!torch_.native)
        return;
    const uint64_t *keys = local_keys();
    core->included = keys[0] & ~torch_.dense;
    core->excluded = keys[1];
    core->function_modes = torch_.function_stack();
    core->function_disabled = torch_.function_disabled();
    core->grad = torch_.grad();
    core->default_dtype = torch_.default_dtype();
    core->deterministic = torch_.deterministic(torch_.context);
    if (torch_.float32_precision != NULL)
        core->matmul_precision =
            (int8_t)torch_.float32_precision(torch_.context, BACKEND_CUDA, OPERATION_MATMUL);
}

static void read_details(Details *details)
{
    memset(details, 0, sizeof(*details));
    if (!torch_.native)
        return;
    details->dispatch_modes = torch_.dispatch_stack();
    for (int i = 0; i < N_AUTOCAST_DEVICES; i++) {
        int8_t device = autocast_devices[i];
        details->autocast[i] = torch_.autocast_enabled(device) ? torch_.autocast_dtype(device) : OFF;
    }
    details->autocast_cache = torch_.autocast_cache();
    details->deterministic_warn = torch_.deterministic_warn(torch_.context);
    details->deterministic_fill = torch_.deterministic_fill(torch_.context);
}

static bool any_detail(const Core *core, const Details *details)
{
    bool autocast = false;
    for (int i = 0; i < N_AUTOCAST_DEVICES; i++)
        autocast = autocast || details->autocast[i] != OFF;
    return autocast || core->deterministic || details->dispatch_modes > 0;
}

/* A new reference, or NULL: with an exception, or because the core describes all modes. */
static PyObject *read_modes(const Core *core)
{
    if (!torch_.torch || (torch_.native && core->function_modes == 0))
        return NULL;
    PyObject *previous = hook_swap(NULL); /* our own Python is not to be compiled */
    PyObject *modes = PyObject_CallNoArgs(torch_.native ? torch_.python_modes : torch_.python_state);
    Py_XDECREF(hook_swap(previous));
    return modes;
}

PyObject *global_state_now(void)
{
    if (!torch_.tried && find_torch() < 0)
        return NULL;
    GlobalState *self = PyObject_GC_New(GlobalState, GlobalState_Type);
    if (self == NULL)
        return NULL;
    read_core(&self->core);
    read_details(&self->details);
    self->detailed = torch_.native && any_detail(&self->core, &self->details);
    self->modes = NULL;
    self->modes = read_modes(&self->core);
    PyObject_GC_Track((PyObject *)self);
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

int global_state_matches(PyObject *state)
{
    GlobalState *self = (GlobalState *)state;
    Core core;
    Details details;
    read_core(&core);
    if (memcmp(&core, &self->core, sizeof(core)) != 0)
        return 0;
    if (self->detailed) {
        read_details(&details);
        if (memcmp(&details, &self->details, sizeof(details)) != 0)
            return 0;
    }
    if (self->modes == NULL)
        return 1;
    PyObject *modes = read_modes(&core);
    if (modes == NULL)
        return PyErr_Occurred() ? -1 : 0;
    int same = PyObject_RichCompareBool(modes, self->modes, Py_EQ);
    Py_DECREF(modes);
    return same;
}

/* ---- the Python type --------------------------------------------------------------------------- */

static PyObject *state_matches_now(PyObject *self, PyObject *Py_UNUSED(unused))
{
    int same = global_state_matches(self);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

static PyObject *state_content(PyObject *object, PyObject *Py_UNUSED(unused))
{
    GlobalState *self = (GlobalState *)object;
    if (!torch_.native || self->modes != NULL)
        Py_RETURN_NONE;
    Details none;
    memset(&none, 0, sizeof(none));
    PyObject *parts = PyBytes_FromStringAndSize(NULL, sizeof(Core) + sizeof(Details));
    if (parts == NULL)
        return NULL;
    char *bytes = PyBytes_AS_STRING(parts);
    memcpy(bytes, &self->core, sizeof(Core));
    memcpy(bytes + sizeof(Core), self->detailed ? &self->details : &none, sizeof(Details));
    return parts;
}

static int state_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((GlobalState *)self)->modes);
    return 0;
}

static int state_clear(PyObject *self)
{
    Py_CLEAR(((GlobalState *)self)->modes);
    return 0;
}

static PyMethodDef state_methods[] = {
    {"matches_now", state_matches_now, METH_NOARGS,
     PyDoc_STR("matches_now() -> bool\n\nWhether torch's global modes are as they were.")},
    {"content", state_content, METH_NOARGS,
     PyDoc_STR("content() -> bytes | None\n\nThe modes as data, equal in another process of this "
               "PyTorch; None if objects are among them.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot state_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("Torch's global modes at one moment; made by global_state().")},
    {Py_tp_methods, state_methods},
    {Py_tp_traverse, state_traverse},
    {Py_tp_clear, state_clear},
    {Py_tp_dealloc, dealloc_by_clear},
    {0, NULL},
};

static PyType_Spec state_spec = {
    .name = "weft._frame.GlobalState",
    .basicsize = sizeof(GlobalState),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = state_slots,
};

int global_state_init(PyObject *module)
{
    GlobalState_Type = add_type(module, &state_spec);
    return GlobalState_Type == NULL ? -1 : 0;
}
