/* weft._mincut: minimum cut of a directed graph with capacities (Dinic's algorithm).
 *
 *     min_cut(n, source, sink, edges) -> bytes
 *
 * `edges` is a buffer of int64 triples (from, to, capacity). The result has one byte per vertex: 1 for
 * the vertices on the source's side of the cut nearest to the source. ValueError for a bad vertex;
 * OverflowError if the cut is infinite (every path has only edges of capacity >= 2**60).
 *
 * E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
 * estimation", 1970. Used by aot/training/partition.py on graphs of some ten thousand edges: milliseconds.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INFINITE (INT64_C(1) << 60)

typedef struct {
    int64_t n, m;       /* vertices; arcs, two per edge: arc e and its reverse e ^ 1 */
    int64_t *head;      /* first arc of a vertex, or -1 */
    int64_t *next, *to; /* per arc */
    int64_t *room;      /* residual capacity per arc */
    int64_t *level, *current, *queue, *path;
} Network;

static void
network_free(Network *g)
{
    free(g->head);
    free(g->next);
    free(g->to);
    free(g->room);
    free(g->level);
    free(g->current);
    free(g->queue);
    free(g->path);
}

static int64_t *
numbers(int64_t count)
{
    return malloc((size_t)(count > 0 ? count : 1) * sizeof(int64_t));
}

static int
network_alloc(Network *g, int64_t n, int64_t edges)
{
    memset(g, 0, sizeof(*g));
    g->n = n;
    g->head = numbers(n);
    g->next = numbers(2 * edges);
    g->to = numbers(2 * edges);
    g->room = numbers(2 * edges);
    g->level = numbers(n);
    g->current = numbers(n);
    g->queue = numbers(n);
    g->path = numbers(n);
    if (!g->head || !g->next || !g->to || !g->room || !g->level || !g->current || !g->queue
        || !g->path) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t v = 0; v < n; v++) {
        g->head[v] = -1;
    }
    return 0;
}

static void
add_arc(Network *g, int64_t from, int64_t to, int64_t room)
{
    int64_t e = g->m++;
    g->to[e] = to;
    g->room[e] = room;
    g->next[e] = g->head[from];
    g->head[from] = e;
}

static int
add_edges(Network *g, const int64_t *edges, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t from = edges[3 * i], to = edges[3 * i + 1], capacity = edges[3 * i + 2];
        if (from < 0 || from >= g->n || to < 0 || to >= g->n || capacity < 0) {
            PyErr_Format(PyExc_ValueError, "edge %lld: bad vertex or capacity", (long long)i);
            return -1;
        }
        add_arc(g, from, to, capacity > INFINITE ? INFINITE : capacity);
        add_arc(g, to, from, 0);
    }
    return 0;
}

/* Distances from the source over arcs with room; whether the sink is reached. */
static int
find_levels(Network *g, int64_t source, int64_t sink)
{
    int64_t first = 0, last = 0;
    for (int64_t v = 0; v < g->n; v++) {
        g->level[v] = -1;
    }
    g->level[source] = 0;
    g->queue[last++] = source;
    while (first < last) {
        int64_t v = g->queue[first++];
        for (int64_t e = g->head[v]; e >= 0; e = g->next[e]) {
            if (g->room[e] > 0 && g->level[g->to[e]] < 0) {
                g->level[g->to[e]] = g->level[v] + 1;
                g->queue[last++] = g->to[e];
            }
        }
    }
    return g->level[sink] >= 0;
}

/* Pushes flow along the arcs path[0..length); returns the index of the first arc left full. */
static int64_t
push(Network *g, int64_t length, int64_t *pushed)
{
    int64_t least = INT64_MAX, at = 0;
    for (int64_t i = 0; i < length; i++) {
        if (g->room[g->path[i]] < least) {
            least = g->room[g->path[i]];
            at = i;
        }
    }
    for (int64_t i = 0; i < length; i++) {
        g->room[g->path[i]] -= least;
        g->room[g->path[i] ^ 1] += least;
    }
    *pushed = least;
    return at;
}

/* A blocking flow over the level graph, depth first without recursion; -1 if it is infinite. */
static int
blocking_flow(Network *g, int64_t source, int64_t sink)
{
    int64_t length = 0, v = source, pushed;
    memcpy(g->current, g->head, (size_t)g->n * sizeof(int64_t));
    for (;;) {
        if (v == sink) {
            length = push(g, length, &pushed);
            if (pushed >= INFINITE / 2) {
                return -1;
            }
            v = g->to[g->path[length] ^ 1];
            continue;
        }
        int64_t e = g->current[v];
        while (e >= 0 && !(g->room[e] > 0 && g->level[g->to[e]] == g->level[v] + 1)) {
            e = g->next[e];
        }
        g->current[v] = e;
        if (e >= 0) {
            g->path[length++] = e;
            v = g->to[e];
        } else if (length == 0) {
            return 0;
        } else { /* dead end: step back, and do not come here again */
            g->level[v] = -1;
            e = g->path[--length];
            v = g->to[e ^ 1];
        }
    }
}

static PyObject *
solve(Network *g, int64_t source, int64_t sink)
{
    while (find_levels(g, source, sink)) {
        if (blocking_flow(g, source, sink) < 0) {
            PyErr_SetString(PyExc_OverflowError, "the cut is infinite");
            return NULL;
        }
    }
    PyObject *sides = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)g->n);
    if (sides != NULL) {
        char *side = PyBytes_AS_STRING(sides);
        for (int64_t v = 0; v < g->n; v++) {
            side[v] = g->level[v] >= 0;
        }
    }
    return sides;
}

static PyObject *
min_cut(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long n, source, sink;
    Py_buffer edges;
    if (!PyArg_ParseTuple(args, "LLLy*:min_cut", &n, &source, &sink, &edges)) {
        return NULL;
    }
    PyObject *result = NULL;
    Network g;
    memset(&g, 0, sizeof(g));
    int64_t count = (int64_t)edges.len / (int64_t)(3 * sizeof(int64_t));
    if (n <= 0 || source < 0 || source >= n || sink < 0 || sink >= n || source == sink
        || edges.len % (Py_ssize_t)(3 * sizeof(int64_t)) != 0) {
        PyErr_SetString(PyExc_ValueError, "min_cut: bad vertices or edge buffer");
    } else if (network_alloc(&g, n, count) == 0 && add_edges(&g, edges.buf, count) == 0) {
        result = solve(&g, source, sink);
    }
    network_free(&g);
    PyBuffer_Release(&edges);
    return result;
}

static PyMethodDef methods[] = {
    {"min_cut", min_cut, METH_VARARGS,
     "min_cut(n, source, sink, edges) -> bytes: 1 for each vertex on the source's side."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_mincut", "Minimum cut.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__mincut(void)
{
    return PyModule_Create(&definition);
}
