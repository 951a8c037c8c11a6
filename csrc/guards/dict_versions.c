/* Version words of dictionaries, which change whenever the dictionary does.
 *
 * CPython 3.11 has a version number in each dictionary that changes with each change and is unique
 * among all dictionaries; reading it costs one cache line for each dictionary. Later versions notify
 * us of changes (PyDict_Watch): we keep the numbers ourselves, side by side, and one for all of them.
 */
#include "weft_frame.h"

const word_t always_zero = 0;
word_t dict_changes = 1;

/* Whether all changes go through the dictionary. In 3.13 it may share its storage with the object whose
 * attributes it holds (a split table); then it is given its own storage, as `popitem` does. */
static bool owns_its_storage(PyObject *dict)
{
#if WEFT_PY313
    if (((PyDictObject *)dict)->ma_values == NULL)
        return true;
    PyObject *last = PyDict_CheckExact(dict) ? PyObject_CallMethod(dict, "popitem", NULL) : NULL;
    if (last != NULL)
        PyDict_SetItem(dict, PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1));
    Py_XDECREF(last);
    PyErr_Clear(); /* it is empty */
    return ((PyDictObject *)dict)->ma_values == NULL;
#else
    (void)dict;
    return true;
#endif
}

static Word own_version(PyObject *dict)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return word_now(&((PyDictObject *)dict)->ma_version_tag);
#pragma GCC diagnostic pop
}

#if !WEFT_PY312

Word dict_version(PyObject *dict, bool *watched)
{
    *watched = false;
    return owns_its_storage(dict) ? own_version(dict) : ALWAYS_CHANGED;
}

bool dict_is_watched(const word_t *Py_UNUSED(version), PyObject *Py_UNUSED(dict))
{
    return false;
}

#else

/* A watched dictionary; these structs are never freed but reused. */
typedef struct Watched {
    word_t version; /* first: what `dict_version` points to */
    PyObject *dict; /* borrowed; NULL: unused */
    struct Watched *next; /* with the same hash; or the next unused one */
} Watched;

static struct {
    bool tried;
    int id; /* of the watcher; -1: there is none */
    Watched **chains;
    size_t n_chains, n;
    Watched *unused;
} watch_ = {.id = -1};

/* The place of the pointer to the dictionary's struct, or of the NULL at the end of its chain. */
static Watched **find(PyObject *dict)
{
    size_t hash = ((uintptr_t)dict >> 4) * 0x9E3779B97F4A7C15u >> 20;
    Watched **at = &watch_.chains[hash & (watch_.n_chains - 1)];
    while (*at != NULL && (*at)->dict != dict)
        at = &(*at)->next;
    return at;
}

/* Called before each change of a watched dictionary, and before it is freed. */
static int note_change(PyDict_WatchEvent event, PyObject *dict, PyObject *Py_UNUSED(key),
                       PyObject *Py_UNUSED(value))
{
    Watched **at = find(dict), *entry = *at;
    if (entry == NULL)
        return 0;
    entry->version = ++dict_changes;
    if (event == PyDict_EVENT_DEALLOCATED) {
        *at = entry->next;
        *entry = (Watched){.version = entry->version, .next = watch_.unused};
        watch_.unused = entry;
        watch_.n--;
    }
    return 0;
}

static bool make_room_in_table(void)
{
    if (watch_.n < watch_.n_chains)
        return true;
    size_t n_old = watch_.n_chains, n_new = n_old == 0 ? 1024 : 2 * n_old;
    Watched **old = watch_.chains, **chains = PyMem_RawCalloc(n_new, sizeof(Watched *));
    if (chains == NULL)
        return false;
    watch_.chains = chains;
    watch_.n_chains = n_new;
    for (size_t i = 0; i < n_old; i++) {
        for (Watched *entry = old[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            entry->next = NULL;
            *find(entry->dict) = entry;
        }
    }
    PyMem_RawFree(old);
    return true;
}

static bool make_unused_entries(void)
{
    enum { N = 256 };
    Watched *entries = watch_.unused != NULL ? NULL : PyMem_RawCalloc(N, sizeof(Watched));
    for (int i = 0; entries != NULL && i < N; i++)
        entries[i].next = i + 1 < N ? &entries[i + 1] : NULL;
    if (entries != NULL)
        watch_.unused = entries;
    return watch_.unused != NULL;
}

static bool can_watch(void)
{
    if (!watch_.tried) {
        watch_.tried = true;
        watch_.id = PyDict_AddWatcher(note_change);
        PyErr_Clear(); /* all are taken */
    }
    return watch_.id >= 0 && make_room_in_table() && make_unused_entries();
}

static Watched *watched_entry(PyObject *dict)
{
    if (!can_watch())
        return NULL;
    Watched **at = find(dict);
    if (*at == NULL) {
        if (PyDict_Watch(watch_.id, dict) < 0) {
            PyErr_Clear();
            return NULL;
        }
        *at = watch_.unused;
        watch_.unused = (*at)->next;
        (*at)->dict = dict;
        (*at)->next = NULL;
        watch_.n++;
    }
    return *at;
}

Word dict_version(PyObject *dict, bool *watched)
{
    bool owned = owns_its_storage(dict);
    Watched *entry = owned ? watched_entry(dict) : NULL;
    *watched = entry != NULL;
    return entry != NULL ? word_now(&entry->version) : owned ? own_version(dict) : ALWAYS_CHANGED;
}

bool dict_is_watched(const word_t *version, PyObject *dict)
{
    return ((const Watched *)version)->dict == dict;
}

#endif
