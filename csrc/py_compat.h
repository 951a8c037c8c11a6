/* The differences between CPython 3.11, 3.12 and 3.13, and the private CPython interfaces in use.
 *
 * Everything in this extension that depends on the interpreter's version is here: how to read a frame of
 * the evaluator (PEP 523), who must clear it, how to attach data to a code object, and how to see that a
 * thread is being traced. Include this file before any other header.
 */
#ifndef WEFT_PY_COMPAT_H
#define WEFT_PY_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "weft supports CPython 3.11, 3.12 and 3.13"
#endif

#define WEFT_PY312 (PY_VERSION_HEX >= 0x030C0000)
#define WEFT_PY313 (PY_VERSION_HEX >= 0x030D0000)

/* CPython's internal headers warn under -Wextra; they are not ours. */
#define Py_BUILD_CORE 1
#undef _PyGC_FINALIZED /* 3.11 defines it twice */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#pragma GCC diagnostic pop
#undef Py_BUILD_CORE

typedef _PyInterpreterFrame Frame;

/* ---- reading a frame that is about to be evaluated ------------------------------------------- */

static inline PyCodeObject *frame_code(Frame *frame)
{
#if WEFT_PY313
    return PyCode_Check(frame->f_executable) ? (PyCodeObject *)frame->f_executable : NULL;
#else
    return frame->f_code;
#endif
}

static inline PyObject *frame_function(Frame *frame) /* borrowed */
{
#if WEFT_PY312
    return frame->f_funcobj;
#else
    return (PyObject *)frame->f_func;
#endif
}

/* Whether this thread is being traced (sys.settrace, sys.setprofile, sys.monitoring). */
static inline bool thread_is_traced(PyThreadState *state)
{
#if WEFT_PY312
    const _Py_GlobalMonitors *monitors = &state->interp->monitors;
    for (size_t i = 0; i < sizeof(monitors->tools); i++)
        if (monitors->tools[i])
            return true;
    return false;
#else
    return state->cframe->use_tracing != 0;
#endif
}

/* Whether somebody follows this thread line by line: sys.settrace (pdb, coverage), or a debugger or
 * coverage tool that has registered with sys.monitoring. A profiler does not count. */
static inline bool thread_is_debugged(PyThreadState *state)
{
#if WEFT_PY312
    enum { DEBUGGER, COVERAGE };
    PyObject *const *tools = state->interp->monitoring_tool_names;
    if (tools[DEBUGGER] != NULL || tools[COVERAGE] != NULL)
        return true;
#endif
    return state->c_tracefunc != NULL;
}

/* ---- the depth of the program's calls --------------------------------------------------------- */

/* How many more frames the thread may enter within the program's recursion limit. */
static inline int *frames_left(PyThreadState *state)
{
#if WEFT_PY312
    return &state->py_recursion_remaining;
#else
    return &state->recursion_remaining;
#endif
}

/* Whether C calls are nested so deeply that Python calls should not become C calls too, as they do
 * under a frame evaluator. 3.11 counts only frames. */
static inline bool is_deep_in_c(PyThreadState *state)
{
#if WEFT_PY312
    return state->c_recursion_remaining < 600;
#else
    (void)state;
    return false;
#endif
}

/* Extra frames for the compiler's own calls, however deep the program is. */
static inline void begin_ours(PyThreadState *state)
{
    *frames_left(state) += 200;
}

static inline void end_ours(PyThreadState *state)
{
    *frames_left(state) -= 200;
}

/* Counts a call of the program whose frame has ended already as a running one; false: RecursionError.
 * From 3.12 on Python counts frames and C calls separately. */
static inline bool frame_enter(void)
{
    if (Py_EnterRecursiveCall(""))
        return false;
#if WEFT_PY312
    if ((*frames_left(PyThreadState_Get()))-- <= 0) {
        ++*frames_left(PyThreadState_Get());
        Py_LeaveRecursiveCall();
        PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded");
        return false;
    }
#endif
    return true;
}

static inline void frame_leave(void)
{
#if WEFT_PY312
    ++*frames_left(PyThreadState_Get());
#endif
    Py_LeaveRecursiveCall();
}

/* ---- the end of a frame that was not evaluated ------------------------------------------------ */

#if WEFT_PY312
/* From 3.12 on the evaluator clears the frame that it receives and pops it from the thread's data stack;
 * if the frame is not evaluated, we must do both. The frame was never linked into the frame stack, so
 * no frame object can refer to it. */
static inline void frame_discard(PyThreadState *state, Frame *frame)
{
    PyCodeObject *code = frame_code(frame);
    for (int i = 0; i < frame->stacktop; i++)
        Py_XDECREF(frame->localsplus[i]);
    Py_XDECREF(frame->f_locals);
    Py_DECREF(frame->f_funcobj);
    Py_DECREF(code);
    PyObject **base = (PyObject **)frame;
    _PyStackChunk *chunk = state->datastack_chunk;
    if (base != &chunk->data[0]) {
        state->datastack_top = base;
        return;
    }
    _PyStackChunk *previous = chunk->previous;
    state->datastack_top = &previous->data[previous->top];
    state->datastack_chunk = previous;
    state->datastack_limit = (PyObject **)((char *)previous + previous->size);
    PyObjectArenaAllocator arena;
    PyObject_GetArenaAllocator(&arena);
    arena.free(arena.ctx, chunk, chunk->size);
}
#else
/* In 3.11 the caller of the evaluator clears the frame and pops it. */
static inline void frame_discard(PyThreadState *Py_UNUSED(state), Frame *Py_UNUSED(frame)) {}
#endif

/* ---- classes ------------------------------------------------------------------------------------ */

/* What the class itself defines (new reference), or NULL. */
static inline PyObject *class_dict(PyTypeObject *type)
{
#if WEFT_PY312
    return PyType_GetDict(type);
#else
    return Py_XNewRef(type->tp_dict);
#endif
}

/* ---- words of memory --------------------------------------------------------------------------- */

/* A word of memory, and its recorded value. */
typedef uintptr_t __attribute__((may_alias)) word_t;
typedef struct {
    const word_t *at;
    word_t held;
} Word;

static inline Word word_now(const void *at)
{
    return (Word){at, *(const word_t *)at};
}

/* The first word from `at` on that differs from its recorded value; `n` if there is none. */
static inline Py_ssize_t first_changed(const Word *words, Py_ssize_t at, Py_ssize_t n)
{
    while (at < n && *words[at].at == words[at].held)
        at++;
    return at;
}

/* ---- the exception that is set ------------------------------------------------------------------ */

static inline PyObject *take_exception(void) /* new reference, traceback set; or NULL */
{
#if WEFT_PY312
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value != NULL && traceback != NULL)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

static inline void restore_exception(PyObject *error) /* steals */
{
#if WEFT_PY312
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

/* ---- data attached to code objects ------------------------------------------------------------ */

#if WEFT_PY312
#define code_extra_request PyUnstable_Eval_RequestCodeExtraIndex
#define code_extra_get PyUnstable_Code_GetExtra
#define code_extra_set PyUnstable_Code_SetExtra
#else
#define code_extra_request _PyEval_RequestCodeExtraIndex
#define code_extra_get _PyCode_GetExtra
#define code_extra_set _PyCode_SetExtra
#endif

#endif
