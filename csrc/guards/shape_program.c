/* Relations between sizes as a small program: `s0 % 8 == 0 and s0 <= s1` without calling Python.
 *
 * shapes/ passes the relation in postfix order, as a tuple of ("slot", i), ("const", c) and operator names:
 *
 *     (("slot", 0), ("const", 8), "%", ("const", 0), "==", ("slot", 0), ("slot", 1), "<=", "and")
 *
 * It runs on a stack of 64-bit integers with Python's meaning of // and %. If something cannot be
 * computed (a slot without an integer, an overflow, a division by zero) the check fails.
 */
#include "weft_frame.h"

typedef enum {
    OP_SLOT, OP_CONST, OP_ADD, OP_SUB, OP_MUL, OP_FLOOR_DIV, OP_MOD, OP_MIN, OP_MAX, OP_EQ, OP_NE,
    OP_LT, OP_LE, OP_GT, OP_GE, OP_AND, OP_OR, OP_NOT, OP_NEG
} OpCode;

static const struct {
    const char *name;
    OpCode code;
    int takes;
} operators[] = {
    {"+", OP_ADD, 2},  {"-", OP_SUB, 2},  {"*", OP_MUL, 2},    {"//", OP_FLOOR_DIV, 2},
    {"%", OP_MOD, 2},  {"min", OP_MIN, 2}, {"max", OP_MAX, 2}, {"==", OP_EQ, 2},
    {"!=", OP_NE, 2},  {"<", OP_LT, 2},   {"<=", OP_LE, 2},    {">", OP_GT, 2},
    {">=", OP_GE, 2},  {"and", OP_AND, 2}, {"or", OP_OR, 2},   {"not", OP_NOT, 1},
    {"neg", OP_NEG, 1},
};

typedef struct {
    OpCode code;
    int64_t number; /* the slot or the constant */
} Op;

struct ShapeProgram {
    Py_ssize_t n, depth;
    Op ops[];
};

/* ---- running ------------------------------------------------------------------------------------- */

static bool floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder)
{
    if (b == 0 || (a == INT64_MIN && b == -1))
        return false;
    int64_t q = a / b, r = a % b;
    bool adjust = r != 0 && (r < 0) != (b < 0);
    *quotient = q - adjust;
    *remainder = adjust ? r + b : r;
    return true;
}

/* a <- a op b; false: cannot be computed. */
static bool apply(OpCode code, int64_t *a, int64_t b)
{
    int64_t other;
    switch (code) {
    case OP_ADD:
        return !__builtin_add_overflow(*a, b, a);
    case OP_SUB:
        return !__builtin_sub_overflow(*a, b, a);
    case OP_MUL:
        return !__builtin_mul_overflow(*a, b, a);
    case OP_FLOOR_DIV:
        return floor_divide(*a, b, a, &other);
    case OP_MOD:
        return floor_divide(*a, b, &other, a);
    case OP_MIN:
        *a = *a < b ? *a : b;
        return true;
    case OP_MAX:
        *a = *a > b ? *a : b;
        return true;
    case OP_EQ:
        *a = *a == b;
        return true;
    case OP_NE:
        *a = *a != b;
        return true;
    case OP_LT:
        *a = *a < b;
        return true;
    case OP_LE:
        *a = *a <= b;
        return true;
    case OP_GT:
        *a = *a > b;
        return true;
    case OP_GE:
        *a = *a >= b;
        return true;
    case OP_AND:
        *a = *a && b;
        return true;
    case OP_OR:
        *a = *a || b;
        return true;
    default:
        return false;
    }
}

static bool read_slot(PyObject *value, int64_t *number)
{
    int overflow;
    if (value == NULL || !PyLong_Check(value))
        return false;
    *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
}

static bool run_op(const Op *op, PyObject *const *slots, int64_t **top)
{
    switch (op->code) {
    case OP_SLOT:
        return read_slot(slots[op->number], ++*top);
    case OP_CONST:
        *++*top = op->number;
        return true;
    case OP_NOT:
        **top = !**top;
        return true;
    case OP_NEG:
        return !__builtin_sub_overflow((int64_t)0, **top, *top);
    default:
        --*top;
        return apply(op->code, *top, (*top)[1]);
    }
}

int shape_program_run(const ShapeProgram *program, PyObject *const *slots)
{
    enum { SMALL = 32 };
    int64_t small[SMALL];
    int64_t *stack = small;
    if (program->depth > SMALL) {
        stack = PyMem_Malloc((size_t)program->depth * sizeof(int64_t));
        if (stack == NULL)
            return PyErr_NoMemory(), -1;
    }
    int64_t *top = stack - 1;
    bool known = true;
    for (Py_ssize_t i = 0; i < program->n && known; i++)
        known = run_op(&program->ops[i], slots, &top);
    int result = known && *top != 0;
    if (stack != small)
        PyMem_Free(stack);
    return result;
}

/* ---- sizes seen before --------------------------------------------------------------------------- */

/* The last numbers for which all programs of a tree held: if they come again, nothing is computed. */
struct SeenSizes {
    Py_ssize_t n_slots;
    bool readable, known;
    struct {
        bool used;
        int64_t now, last;
    } slots[];
};

SeenSizes *seen_sizes_new(Py_ssize_t n_slots)
{
    size_t slot = sizeof(((SeenSizes *)NULL)->slots[0]);
    SeenSizes *seen = PyMem_Calloc(1, sizeof(SeenSizes) + (size_t)n_slots * slot);
    if (seen == NULL)
        return (SeenSizes *)PyErr_NoMemory();
    seen->n_slots = n_slots;
    return seen;
}

/* Registers a program that need not run for such numbers. */
void seen_sizes_of(SeenSizes *seen, const ShapeProgram *program)
{
    for (Py_ssize_t i = 0; i < program->n; i++)
        if (program->ops[i].code == OP_SLOT)
            seen->slots[program->ops[i].number].used = true;
}

bool seen_sizes_again(SeenSizes *seen, PyObject *const *slots)
{
    bool same = seen->readable = true;
    for (Py_ssize_t i = 0; i < seen->n_slots && seen->readable; i++)
        if (seen->slots[i].used) {
            seen->readable = read_slot(slots[i], &seen->slots[i].now);
            same = same && seen->slots[i].now == seen->slots[i].last;
        }
    return seen->known && seen->readable && same;
}

/* Records that all programs held for the numbers of the last question. */
void seen_sizes_passed(SeenSizes *seen)
{
    seen->known = seen->readable;
    for (Py_ssize_t i = 0; i < seen->n_slots; i++)
        seen->slots[i].last = seen->slots[i].now;
}

/* ---- parsing ------------------------------------------------------------------------------------- */

/* How many values the operation takes, or -1 with an exception. */
static int parse_operator(PyObject *name, Op *op)
{
    for (size_t i = 0; PyUnicode_Check(name) && i < sizeof(operators) / sizeof(operators[0]); i++)
        if (PyUnicode_CompareWithASCIIString(name, operators[i].name) == 0) {
            op->code = operators[i].code;
            return operators[i].takes;
        }
    PyErr_Format(PyExc_ValueError, "shape program: unknown operation %R", name);
    return -1;
}

static int parse_leaf(PyObject *leaf, Py_ssize_t n_slots, Op *op)
{
    const char *kind;
    long long number;
    if (!PyArg_ParseTuple(leaf, "sL:shape program", &kind, &number))
        return -1;
    bool slot = strcmp(kind, "slot") == 0;
    if ((!slot && strcmp(kind, "const") != 0) || (slot && (number < 0 || number >= n_slots))) {
        PyErr_Format(PyExc_ValueError, "shape program: %R", leaf);
        return -1;
    }
    op->code = slot ? OP_SLOT : OP_CONST;
    op->number = number;
    return 0;
}

static int parse_op(PyObject *token, Py_ssize_t n_slots, Op *op)
{
    return PyTuple_Check(token) ? parse_leaf(token, n_slots, op) : parse_operator(token, op);
}

ShapeProgram *shape_program_parse(PyObject *tuple, Py_ssize_t n_slots)
{
    Py_ssize_t n = PyTuple_GET_SIZE(tuple), depth = 0;
    ShapeProgram *program = PyMem_Calloc(1, sizeof(ShapeProgram) + (size_t)n * sizeof(Op));
    if (program == NULL)
        return (ShapeProgram *)PyErr_NoMemory();
    for (; program->n < n; program->n++) {
        int takes = parse_op(PyTuple_GET_ITEM(tuple, program->n), n_slots, &program->ops[program->n]);
        if (takes < 0 || takes > depth)
            break;
        depth += 1 - takes;
        if (depth > program->depth)
            program->depth = depth;
    }
    if (program->n < n || depth != 1) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "shape program: not one value in postfix order");
        PyMem_Free(program);
        return NULL;
    }
    return program;
}
