/* Declarations shared by the files of weft._frame. Read in this order:
 *
 *   py_compat.h          the differences between CPython versions
 *   tensor_access.c      reading a torch.Tensor's metadata without torch headers
 *   storage_overlap.c    whether tensors that are written share memory with others
 *   global_state.c       torch's global modes as one comparable value
 *   class_checks.c       checks of classes
 *   guard_checks.c       one check on one value
 *   shape_program.c      relations between sizes, as a small program
 *   tree_checks.c        checks of the whole tree
 *   guards.c             GuardTree: the checks of a captured frame, evaluated in one walk
 *   dict_versions.c      version words of dictionaries
 *   guard_memo.c         memos of walks: values that did not change are not walked again
 *   code_cache.c         Entry {guards, replacement}; the entries of each code object
 *   on_miss.c            OnMiss: what is asked when no entry fits, and for which settings
 *   compiled_function.c  CompiledFunction: binds arguments, tries entries, calls the replacement
 *   tail_call.c          replacements that end by returning what to call next
 *   frame_objects.c      tracebacks that show the frames of the program
 *   torch_stance.c       the stance that torch.compiler.set_stance has set
 *   frame_hook.c         the same for nested Python frames (PEP 523)
 *   module.c             the module
 */
#ifndef WEFT_FRAME_H
#define WEFT_FRAME_H

#include "py_compat.h"

/* ---- tensor_access.c ---------------------------------------------------------------------------
 * A tensor's metadata. `sizes` and `strides` point into the tensor and live as long as it does not
 * change. */
typedef struct {
    uint64_t key_set;      /* dispatch keys: device, layout, conj/neg bits, functorch wrappers, ... */
    uint32_t dtype_device; /* dtype code, device type, device index */
    Py_ssize_t rank;
    const int64_t *sizes;
    const int64_t *strides;
} TensorMeta;

bool tensor_access_ready(void);              /* calibrated: the two functions below may be used */
bool tensor_access_calibrate(void);          /* import torch, find the offsets; false: no direct reads */
PyObject *tensor_access_describe(void);      /* dict of the offsets found, for weft doctor */
void *tensor_impl(PyObject *tensor);         /* of an object known to be a torch.Tensor */
const void *tensor_data(PyObject *tensor);   /* of the same: its first element; NULL: cannot be told */
void tensor_read(const void *impl, TensorMeta *meta);
bool tensor_requires_grad(const void *impl);
bool tensor_keys(PyObject *tensor, uint64_t *keys); /* its dispatch keys; false: they cannot be read */
void note_plain_thread(void); /* this thread's modes are those of a plain run of the autograd engine */
bool is_plain_thread(void);
int tensor_is_lazy(PyObject *tensor);        /* its memory does not hold its numbers; -1: exception */

/* What guards look at in a tensor. */
typedef struct {
    PyTypeObject *type; /* borrowed: the guard that wants it holds it */
    uint64_t key_set;
    uint32_t dtype_device;
    uint16_t rank;
    bool requires_grad;
    int64_t extents[];  /* sizes, then strides */
} TensorLook;

typedef struct {
    PyObject *value;
    const void *impl;
    const char *autograd;
    uint32_t look; /* how it looked: where, in bytes, among the looks */
} SeenTensor;

const char *autograd_meta(const void *impl);
size_t tensor_look_size(Py_ssize_t rank);
void tensor_look(PyObject *value, TensorLook *look); /* into zeroed memory */
bool tensors_look_as(const SeenTensor *tensors, Py_ssize_t n, const char *looks);
const void *tensor_storage(const void *impl); /* the StorageImpl, or NULL */
bool is_tensor(PyObject *value);             /* instance of torch.Tensor */
/* Clears the references to tensors and tuples of tensors, to free their memory. (Freeing other objects
 * may have an effect, as with a lock or a temporary directory: they live as long as their frame.) */
void drop_tensors(PyObject **values, Py_ssize_t n);
PyTypeObject *tensor_base_type(void);        /* torch.Tensor, or NULL while torch is not imported */
void *torch_symbol(const char *mangled);     /* from libc10, libtorch_cpu; NULL when absent */

/* ---- global_state.c ---------------------------------------------------------------------------- */
extern PyTypeObject *GlobalState_Type;
PyObject *global_state_now(void);            /* new GlobalState object */
int global_state_matches(PyObject *state);   /* 1, 0, or -1 with an exception */

/* ---- guard_checks.c ---------------------------------------------------------------------------- */
typedef enum { /* in the order of `kinds` in guard_checks.c */
    CHECK_TENSOR, CHECK_TYPE_IS, CHECK_EQ, CHECK_IS, CHECK_IS_ALIVE, CHECK_IS_NOT, CHECK_LEN,
    CHECK_DICT_KEYS, CHECK_MISSING_KEY, CHECK_NO_ATTR, CHECK_SAME_AS_SLOT, CHECK_PY, CHECK_CONTENT,
    CHECK_CLASS_ATTRIBUTE, CHECK_CLASS_DATA, CHECK_BASES, N_CHECK_KINDS
} CheckKindId;

typedef struct Check Check;
typedef int (*check_fn)(const Check *check, PyObject *value, PyObject *const *slots);

typedef struct {
    PyTypeObject *type; /* exact */
    PyObject *dtype;
    PyObject *device_type; /* str */
    long device_index;     /* -1: none */
    PyObject *layout;
    bool requires_grad;
    bool any_rank;
    bool any_strides;
    Py_ssize_t rank;
    int64_t *extents;      /* sizes, then strides; ANY_EXTENT where not checked */
    bool learned;          /* the two words below were seen on a tensor that passed every check */
    uint64_t key_set;
    uint32_t dtype_device;
} TensorSpec;

struct Check {
    CheckKindId kind;
    check_fn run; /* 1 passes, 0 fails, -1 exception */
    PyObject *operand;
    Py_ssize_t number;
    PyObject *guard_id;
    TensorSpec *tensor;
};

int check_parse(PyObject *tuple, Py_ssize_t n_slots, Check *check); /* 0, or -1 with an exception */
void check_clear(Check *check);
/* A Python function of one value: 1, 0, or -1 with an exception. */
int predicate_holds(PyObject *predicate, PyObject *value);
int check_traverse(const Check *check, visitproc visit, void *arg);
bool tensor_spec_matches_quickly(const TensorSpec *spec, PyObject *value);

/* ---- class_checks.c ---------------------------------------------------------------------------- */
int check_class_attribute(const Check *check, PyObject *value, PyObject *const *slots);
int check_class_data(const Check *check, PyObject *value, PyObject *const *slots);
int check_bases(const Check *check, PyObject *value, PyObject *const *slots);
bool is_class_check(const Check *check);     /* one of these three */
/* A word that changes with the class, its bases and their order, and that no other class has. */
Word class_version(PyObject *type);

/* ---- guards.c ---------------------------------------------------------------------------------- */
typedef struct {
    PyObject *const *locals; /* flat parameters */
    Py_ssize_t n_locals;
    PyObject *closure;       /* tuple of cells, or NULL */
    PyObject *globals;
} FrameValues;

typedef enum { /* in the order of `accessors` in guards.c */
    FROM_LOCAL, FROM_CELL, FROM_CELL_OBJECT, FROM_GLOBAL, FROM_BUILTIN, FROM_OBJECT, FROM_ALIVE,
    FROM_ATTR, FROM_INSTANCE_DICT, FROM_DICT_ITEM, FROM_LIST_ITEM, FROM_TUPLE_ITEM, FROM_TYPE, FROM_SIZE,
    FROM_STRIDE, FROM_CALL, N_ACCESSORS
} AccessorId;

typedef struct Node Node;
typedef struct Memo Memo;
typedef struct Memos Memos;
/* The value (new reference); NULL without an exception when it is not there. */
typedef PyObject *(*access_fn)(const Node *node, PyObject *parent, const FrameValues *frame);

struct Node {
    AccessorId accessor;
    access_fn access;
    PyObject *operand; /* name, key, fixed object or callable */
    Py_ssize_t number; /* index or dimension */
    Py_ssize_t slot;   /* -1: not collected */
    Py_ssize_t n_checks, n_children;
    Check *checks;
    Node *children;
    Memos *memos; /* of a root below which there are dictionaries or lists; else NULL */
};

typedef struct {
    const FrameValues *frame;
    PyObject **slots;
    PyObject *failed; /* borrowed id of the first guard that failed; only if `explain` */
    bool explain;
    Memo *recording;  /* what is walked is noted here; or NULL */
} Walk;

int walk_node(Walk *walk, const Node *node, PyObject *parent);

/* ---- shape_program.c --------------------------------------------------------------------------- */
typedef struct ShapeProgram ShapeProgram; /* one block of PyMem_Malloc */
ShapeProgram *shape_program_parse(PyObject *tuple, Py_ssize_t n_slots); /* NULL: exception */
int shape_program_run(const ShapeProgram *program, PyObject *const *slots); /* 1, 0, -1 */
typedef struct SeenSizes SeenSizes; /* one block of PyMem_Malloc */
SeenSizes *seen_sizes_new(Py_ssize_t n_slots); /* NULL: exception */
void seen_sizes_of(SeenSizes *seen, const ShapeProgram *program);
bool seen_sizes_again(SeenSizes *seen, PyObject *const *slots);
void seen_sizes_passed(SeenSizes *seen);

/* ---- dict_versions.c --------------------------------------------------------------------------- */
extern word_t dict_changes; /* of all watched dictionaries: unchanged, so are they */
/* A word that changes with each change of the dictionary and that no other dictionary shares. */
Word dict_version(PyObject *dict, bool *watched);
/* Whether the word of a watched dictionary still belongs to this dictionary, which may be freed. */
bool dict_is_watched(const word_t *version, PyObject *dict);
#define ALWAYS_CHANGED ((Word){&always_zero, 1}) /* for what has no such word */
extern const word_t always_zero;

/* ---- guard_memo.c ------------------------------------------------------------------------------ */
Memos *memos_new(const Node *root);          /* NULL: no memory */
void memos_free(Memos *memos);
int memos_traverse(const Memos *memos, visitproc visit, void *arg);
Memo *memo_start_recording(Memos *memos, PyObject *value); /* NULL: do not record now */
void memo_note(Memo *memo, const Node *node, PyObject *parent, PyObject *value);
bool memo_is_replayed_by_walking(const Node *node, PyObject *parent, PyObject *value);
void memo_stop_recording(Memos *memos, Memo *memo, bool passed);
/* 1: all below the root holds, slots filled; 0: unknown, walk; -1: an exception. */
int memo_replay(Memos *memos, Walk *walk, PyObject *value);

/* ---- tree_checks.c ----------------------------------------------------------------------------- */
typedef struct TreeCheck TreeCheck;
struct TreeCheck {
    bool first;
    int (*run)(const TreeCheck *check, PyObject *collected);
    PyObject *operand;
    Py_ssize_t n_numbers;
    Py_ssize_t *numbers;
    ShapeProgram *program;
    Word *words;        /* of functions */
    Py_ssize_t n_words;
    PyObject *guard_id;
};

int tree_check_parse(PyObject *tuple, Py_ssize_t n_slots, TreeCheck *check); /* as `check_parse` */
void tree_check_clear(TreeCheck *check);

extern PyTypeObject *GuardTree_Type;
/* 1: passes, *collected is a new list; 0: fails; -1: an exception that must not be swallowed. */
int guard_tree_check(PyObject *tree, const FrameValues *frame, PyObject **collected);

/* ---- code_cache.c ------------------------------------------------------------------------------ */
typedef struct {
    PyObject_HEAD
    PyObject *guards;
    PyObject *fn;
    PyObject *globals; /* NULL: any */
    PyObject *owner;   /* the settings that it was compiled with; NULL: any */
    char needs_hook;
    char may_rerun;    /* fn may raise RunEagerly: the frame's arguments are kept until it returned */
    char any_size;
    unsigned long long hits;
} Entry;

/* The entries of one code object. Normally the code object owns it; once a CompiledFunction uses it, that
 * owns it, so that the garbage collector sees what it holds. */
typedef struct CodeCache {
    PyObject_HEAD
    PyObject *entries; /* tuple: `any_size` last, most recent hit first; replaced, never changed */
    PyObject *code;    /* strong when `owned`, else borrowed */
    PyObject *frozen;  /* NULL, or the set of owners whose entries are tried, but no more compiled */
    Py_ssize_t clears; /* how often its entries were forgotten */
    bool owned;        /* by CompiledFunctions */
    bool skip;         /* never try, never compile */
    bool unhooked;     /* skipped, and what it calls too */
    struct CodeCache *previous, *next; /* among all that live */
} CodeCache;

extern PyTypeObject *Entry_Type;
extern PyTypeObject *CodeCache_Type;
CodeCache *code_cache_find(PyObject *code);  /* borrowed or NULL, never an exception */
CodeCache *code_cache_get(PyObject *code);   /* borrowed; made when there is none */
void code_cache_own(CodeCache *cache);       /* a CompiledFunction takes a reference to it */
bool code_cache_may_compile(const CodeCache *cache, PyObject *owner);
/* 1: *entry (new reference) and *collected are set; 0: no entry fits; -1: exception. */
int code_cache_search(CodeCache *cache, PyObject *owner, const FrameValues *frame, Entry **entry,
                      PyObject **collected);
/* The entries of a code object that one compiled function has used, in the order of trying: what others
 * add for the same code makes its calls no slower. */
typedef struct {
    PyObject *entries; /* tuple, or NULL */
    Py_ssize_t clears; /* of the CodeCache when they were used */
} UsedEntries;
int used_entries_search(UsedEntries *used, const FrameValues *frame, Entry **entry,
                        PyObject **collected);
int code_cache_search_others(CodeCache *cache, PyObject *owner, const UsedEntries *used,
                             const FrameValues *frame, Entry **entry, PyObject **collected);
int used_entries_add(UsedEntries *used, Entry *entry);
/* After a miss: call `on_miss` and add its entry. 1, 0 (run eagerly) or -1 as above. */
int code_cache_miss(PyObject *on_miss, PyObject *compiled, PyObject *function, PyObject *code,
                    const FrameValues *frame, Entry **entry, PyObject **collected);
/* Calls the replacement, with the frame hook on if the entry needs it. Steals `collected`. */
PyObject *entry_call(Entry *entry, PyObject *collected, PyObject *on_miss);

/* ---- torch_stance.c ---------------------------------------------------------------------------- */
typedef enum {
    STANCE_COMPILE, /* the others are read at a miss */
    STANCE_EAGER,   /* compiled functions and frames run as plain Python */
    STANCE_BACKEND, /* compiled functions are compiled by another backend */
} Stance;
typedef struct {
    Word unchanged; /* the version of the dictionary in which it was read */
    Stance says;
} KnownStance;
extern KnownStance known_stance;
Stance torch_stance_read(void);
static inline Stance torch_stance(void)
{
    const KnownStance *known = &known_stance;
    return *known->unchanged.at == known->unchanged.held ? known->says : torch_stance_read();
}
PyObject *stance_redirect(PyObject *compiled); /* new reference: what to call instead, or None */

/* ---- frame_hook.c ------------------------------------------------------------------------------ */
bool hook_pause(bool paused); /* whether frames are left alone all the same; returns the previous */
/* Another frame evaluator (torch.compile's) is out of use from the first to the second. */
_PyFrameEvalFunction hook_set_other_aside(void);
void hook_put_back(_PyFrameEvalFunction other);
Stance hook_stance(void);               /* of this thread: weft's, else torch's */
PyObject *hook_swap(PyObject *on_miss); /* this thread's; steals, returns the previous (or NULL) */
PyObject *hook_current(void);           /* borrowed or NULL */
/* Runs the function as it is, what it calls with this `on_miss` or NULL. `steal`: its frame, once it has the arguments, is the only one to. */
PyObject *hook_run_eagerly(PyObject *function, PyObject *code, PyObject *on_miss, PyObject **args,
                           Py_ssize_t nargs, PyObject *kwnames, bool steal);
extern PyTypeObject *Hook_Type;
extern PyTypeObject *Unhooked_Type;

/* ---- on_miss.c --------------------------------------------------------------------------------- */
extern PyTypeObject *OnMiss_Type;
PyObject *on_miss_owner(PyObject *on_miss); /* borrowed: the settings that its entries are for; else None */

/* ---- compiled_function.c ----------------------------------------------------------------------- */
extern PyTypeObject *CompiledFunction_Type;
/* Calls one piece; may return a TailCall. `steal`: the argument references are taken if possible. */
PyObject *compiled_call_once(PyObject *callable, PyObject **args, Py_ssize_t nargs, PyObject *kwnames,
                             bool steal);

/* ---- tail_call.c ------------------------------------------------------------------------------- */
extern PyTypeObject *TailCall_Type;
extern PyObject *RunEagerly;
PyObject *rerun_signal(PyObject *result); /* the RunEagerly that a replacement raised, else NULL */
PyObject *rerun_done(PyObject *result, PyObject *signal); /* tells what it asks for; steals both */
/* The final result: calls what the TailCall `result` names, and so on. Steals `result` (or NULL). */
PyObject *tail_calls_run(PyObject *result);

/* ---- frame_objects.c --------------------------------------------------------------------------- */
void frames_end(void); /* empties the frames that wait for it, of replacements that have ended */
void error_end_frames(PyObject *error); /* empties the finished frames that an error came through */
void error_clean(void); /* of the exception that is set: what its traceback shows */
int error_absorb(void);  /* 0: there was none, or it makes a check fail and is gone; -1: it propagates */

/* Each file's part of module start-up. */
int storage_overlap_init(PyObject *module);
int global_state_init(PyObject *module);
int guards_init(PyObject *module);
int code_cache_init(PyObject *module);
int on_miss_init(PyObject *module);
int compiled_function_init(PyObject *module);
int frame_hook_init(PyObject *module);
int tail_call_init(PyObject *module);
int frame_objects_init(PyObject *module);
int torch_stance_init(PyObject *module);

/* Makes a heap type from its spec and adds it to the module under its own name. */
PyTypeObject *add_type(PyObject *module, PyType_Spec *spec);
void dealloc_by_clear(PyObject *object); /* tp_dealloc of types whose tp_clear drops all they hold */

#define ANY_EXTENT INT64_MIN

#endif
