/* bringup engine ABI 1: graph passes in C or C++, and running passes over a graph from a C or C++
 * program. Plain C11 (or C++17), usable alone, no torch, no Python.
 *
 * A library with passes exports one function,
 *
 *     int32_t bringup_register_passes(const bringup_engine_api* api);       // 0 = ok
 *
 * and lies on BRINGUP_PASS_PATH. It registers its passes with api->register_pass and may keep
 * `api`, which lives as long as the process. A program that runs passes itself gets the same table
 * from bringup_engine_get (libbringup_engine.so).
 *
 * Version rule: tables and structs are append-only within version 1. Everybody reads no further
 * than struct_size, which the side that fills a struct sets; what lies behind it counts as zero.
 *
 * Error rule: functions return BRINGUP_ENGINE_OK or another bringup_engine_status; after a failure
 * last_error() says why in words, for the calling thread. Nothing is thrown, nothing aborts, and a
 * handle that is no longer (or never was) valid is refused with BRINGUP_ENGINE_EXPIRED. An output
 * is written only on success. A hook may return any status, also one that it was given: then the
 * words are those of last_error. A C++ hook may also throw.
 *
 * Handle rule: handles are numbers that are never used twice. One that a hook is given ends with
 * that hook, and is refused on any other thread. A graph that graph_create made lives until
 * graph_release or until it is handed over (pattern_create, a replacement); it may be used from one
 * thread at a time. A node number is never used again in its graph; it means nothing in another
 * one. Strings belong to the engine and live as long as the process, if nothing else is said; lists
 * and other arrays live until the graph handle ends, or graph_release_arrays.
 *
 * Thread rule: registering and running may happen on any thread. The hooks of one instance never
 * overlap; instances of one pass may run at the same time on different graphs.
 */
#ifndef BRINGUP_ENGINE_H_
#define BRINGUP_ENGINE_H_

#include <stddef.h>
#include <stdint.h>

#define BRINGUP_ENGINE_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

typedef enum bringup_engine_status {
  BRINGUP_ENGINE_OK = 0,
  BRINGUP_ENGINE_INVALID = 1, /* a wrong argument */
  BRINGUP_ENGINE_EXPIRED = 2, /* a handle that is not valid (any more) */
  BRINGUP_ENGINE_NOT_FOUND = 3,
  BRINGUP_ENGINE_DUPLICATE = 4,        /* name and version of a pass are taken */
  BRINGUP_ENGINE_MISSING_PROVIDER = 5, /* the message names the provider */
  BRINGUP_ENGINE_SCHEMA = 6,           /* the arguments do not fit the operator */
  BRINGUP_ENGINE_FAILED = 7,           /* a pass failed */
  BRINGUP_ENGINE_INTERNAL = 8,
  /* What hooks may return besides: */
  BRINGUP_ENGINE_SKIP = 100, /* skip this match; from run: succeed, all edits undone */
  BRINGUP_ENGINE_FATAL = 101 /* fail, and stop the stage at once */
} bringup_engine_status;

/* --- arguments and values */

typedef uint64_t bringup_ir_graph;   /* 0: none */
typedef uint64_t bringup_ir_pattern; /* 0: none */
typedef uint32_t bringup_ir_node;
#define BRINGUP_NO_NODE UINT32_MAX

typedef struct bringup_ir_value {
  bringup_ir_node node;
  uint32_t index; /* which output of the node */
} bringup_ir_value;

typedef enum bringup_argument_kind {
  BRINGUP_ARGUMENT_NONE = 0,
  BRINGUP_ARGUMENT_BOOL = 1,   /* of.integer: 0 or 1 */
  BRINGUP_ARGUMENT_INT = 2,    /* of.integer */
  BRINGUP_ARGUMENT_FLOAT = 3,  /* of.number */
  BRINGUP_ARGUMENT_STRING = 4, /* of.text */
  BRINGUP_ARGUMENT_SYMBOL = 5, /* of.text: the expression of a symbolic integer, "2*s0" */
  BRINGUP_ARGUMENT_OPAQUE = 6, /* of.handle: an object of the host; equal objects, equal handles */
  BRINGUP_ARGUMENT_VALUE = 7,  /* of.value */
  BRINGUP_ARGUMENT_LIST = 8,   /* of.items, count */
  BRINGUP_ARGUMENT_DICT = 9,   /* of.items, count: key, value, key, value, ... */
  BRINGUP_ARGUMENT_SLICE = 10, /* of.items, count 3: start, stop, step */
  BRINGUP_ARGUMENT_ANY = 11,   /* only in patterns: any argument. of.text: its name, "" for none */
  BRINGUP_ARGUMENT_PIECE =
      12 /* only in patterns: of.handle, as pattern_any and its like wrote it */
} bringup_argument_kind;

typedef struct bringup_argument {
  uint32_t kind;  /* of bringup_argument_kind */
  uint32_t count; /* of lists, dicts and slices */
  union {
    int64_t integer;
    double number;
    const char* text; /* the engine copies what it is given */
    uint64_t handle;
    bringup_ir_value value;
    const struct bringup_argument* items;
  } of;
} bringup_argument;

/* What a tensor looks like. A size or stride that is symbolic is -1, and its text stands in
 * shape_text or stride_text at the same index (NULL for a number). */
typedef struct bringup_tensor_desc {
  uint32_t struct_size;
  int32_t rank;
  const int64_t* shape;
  const char* const* shape_text;
  const int64_t* strides; /* in elements; NULL: unknown */
  const char* const* stride_text;
  const char* dtype;  /* "float32" */
  const char* device; /* "cpu", "npu:0" */
} bringup_tensor_desc;

/* The data of a constant. Contiguous, rank and sizes as given. */
typedef struct bringup_constant {
  uint32_t struct_size;
  int32_t rank;
  const int64_t* shape;
  const char* dtype;
  const void* data;
  uint64_t bytes;
} bringup_constant;

/* --- pieces of patterns. What is left zero asks for nothing. All that a struct points to is
 * copied. A name captures what it stands for; the same name means the same wherever it stands. */

/* Any argument that fits. */
typedef struct bringup_any_piece {
  uint32_t struct_size;
  uint32_t kinds; /* 1u << kind for each of NONE, BOOL, INT, FLOAT, STRING, VALUE, LIST; 0: any */
  const char* name;
  const bringup_argument* among; /* one of these, by kind and value; they hold no values */
  uint32_t among_count;
  const double* at_least; /* bounds of a number; with one, nothing else fits */
  const double* at_most;
} bringup_any_piece;

/* A number in the call, or a constant of the graph. */
typedef struct bringup_constant_piece {
  uint32_t struct_size;
  uint32_t value_count; /* 0: any constant */
  const char* name;
  const bringup_argument* values; /* BOOL, INT or FLOAT, in row-major order */
  const int64_t* shape;           /* NULL: one value, which is that of every element */
  int32_t rank;
  double atol; /* |found - value| <= atol + rtol * |value|; NaN is NaN */
  double rtol;
} bringup_constant_piece;

/* A list of values of any length; as an item of a list, all that its other items leave. */
typedef struct bringup_list_piece {
  uint32_t struct_size;
  uint32_t at_least;
  const uint32_t* at_most;
  const char* name;        /* not NULL */
  bringup_ir_pattern each; /* of one output, which every value must be; handed over. 0: any value */
} bringup_list_piece;

typedef enum bringup_size_kind {
  BRINGUP_SIZE_NUMBER = 0,
  BRINGUP_SIZE_NAMED = 1, /* the same name is the same size, compared as an expression */
  BRINGUP_SIZE_ANY = 2,
  BRINGUP_SIZE_REST = 3 /* any number of sizes; once in a shape */
} bringup_size_kind;

typedef struct bringup_size {
  int32_t kind; /* of bringup_size_kind */
  int64_t number;
  const char* name;
} bringup_size;

/* What a tensor must look like. */
typedef struct bringup_tensor_form {
  uint32_t struct_size;
  uint32_t size_count;
  const bringup_size* sizes;  /* NULL: any shape */
  const char* const* dtypes;  /* one of these; NULL-terminated; NULL: any */
  const char* const* devices; /* the same; "npu" takes every device of this type */
  const int32_t* ranks;       /* one of these */
  uint32_t rank_count;
} bringup_tensor_form;

/* A part of a graph: what enters it, and what leaves it. Inside is all that the outputs need and
 * the inputs do not give. */
typedef struct bringup_boundary {
  uint32_t struct_size;
  uint32_t input_count;
  const bringup_ir_value* inputs; /* the replacement's inputs, in order */
  const bringup_ir_value* outputs;
  uint32_t output_count;
} bringup_boundary;

/* --- passes */

typedef enum bringup_pass_kind {
  BRINGUP_PASS_GRAPH = 0,    /* run */
  BRINGUP_PASS_PATTERN = 1,  /* patterns, meet_requirements, replacement */
  BRINGUP_PASS_DECOMPOSE = 2 /* op_types, meet_node, replace_node */
} bringup_pass_kind;

/* In running order. In the first one, what is not an input or a constant has no description yet. */
typedef enum bringup_pass_stage {
  BRINGUP_BEFORE_INFER_SHAPE = 0,
  BRINGUP_AFTER_INFER_SHAPE = 1,
  BRINGUP_AFTER_BUILTIN_FUSION_PASS = 2,
  BRINGUP_AFTER_ORIGIN_GRAPH_OPTIMIZE = 3
} bringup_pass_stage;

/* What happens when a pass fails. BRINGUP_ENGINE_FATAL always fails. */
typedef enum bringup_pass_policy {
  BRINGUP_POLICY_FAIL = 0,    /* its edits are undone, the rest of the stage runs, the run fails */
  BRINGUP_POLICY_SKIP = 1,    /* only the match that failed is undone; the run goes on */
  BRINGUP_POLICY_ROLLBACK = 2 /* the whole pass is undone; the run goes on */
} bringup_pass_policy;

typedef uint64_t bringup_pass_context; /* ends with the hook it is given to */
typedef uint64_t bringup_match;        /* ends with the hook it is given to */

/* A pass. Hooks of another kind stay NULL. The struct and its strings are copied; `user` must live
 * as long as the library. An instance is made for each run over one graph and destroyed after it.
 */
typedef struct bringup_pass_definition {
  uint32_t struct_size;
  const char* name;
  int32_t kind;           /* of bringup_pass_kind */
  int32_t stage;          /* of bringup_pass_stage */
  const char* class_name; /* what defines it; NULL: the name */
  const char*
      version;      /* numbers with dots; NULL: "1". The newest runs unless an option names one */
  int32_t priority; /* within a stage the higher one runs first, then by name */
  int32_t policy;   /* of bringup_pass_policy */
  uint32_t max_rewrites;       /* of one run; 0: no limit */
  int32_t repeat_until_stable; /* 1: sweep again until nothing matches any more */
  const char* const* op_types; /* NULL-terminated, as the two that follow; decompose passes only */
  const char* const* requires_all; /* passes that must be selected too, and run before */
  const char* const* after;        /* passes that run before it where they are selected */
  void* user;

  /* A fresh instance, NULL when that fails (then set_error says why). Without create, `user` is the
   * instance. destroy is called once for what create made, after the last hook. */
  void* (*create)(void* user);
  void (*destroy)(void* instance);

  int32_t (*run)(void* instance, bringup_ir_graph graph, bringup_pass_context context);

  /* Adds each pattern with add_pattern. */
  int32_t (*patterns)(void* instance, bringup_pass_context context);
  /* Optional: writes 0 to *met to leave this match alone. */
  int32_t (*meet_requirements)(void* instance, bringup_match match, bringup_pass_context context,
                               int32_t* met);
  /* Writes the graph that takes the place of the match, and hands it over. Its inputs are those of
   * the pattern, its outputs replace the pattern's, both in order. */
  int32_t (*replacement)(void* instance, bringup_match match, bringup_pass_context context,
                         bringup_ir_graph* replacement);

  /* The same for one node. The inputs of the replacement are the values the node reads, each once,
   * in order; its outputs replace the node's. */
  int32_t (*meet_node)(void* instance, bringup_ir_graph graph, bringup_ir_node node,
                       bringup_pass_context context, int32_t* met);
  int32_t (*replace_node)(void* instance, bringup_ir_graph graph, bringup_ir_node node,
                          bringup_pass_context context, bringup_ir_graph* replacement);
} bringup_pass_definition;

/* A registered pass, by value; lists are NULL-terminated. */
typedef struct bringup_pass_info {
  uint32_t struct_size;
  int32_t kind;
  int32_t stage;
  int32_t priority;
  int32_t policy;
  const char* name;
  const char* version;
  const char* module_name; /* for a library: its path */
  const char* class_name;
  const char* descriptor_key; /* module, class and name */
} bringup_pass_info;

/* --- what operators are: providers of a graph that a program made. A function may be NULL; what
 * needs it then fails with BRINGUP_ENGINE_MISSING_PROVIDER. An error is reported with set_error and
 * any status but OK. Arrays that a provider writes need live only until it is called again on the
 * same thread. */

typedef struct bringup_operator_facts {
  uint32_t struct_size;
  const char* type;     /* with its overload: "aten::add.Tensor" */
  int32_t output_count; /* -1: depends on the call */
  uint32_t parameter_count;
  const char* const* parameter_names;
  const char* const* parameter_types;
  uint64_t mutates;        /* bit i: a call writes parameter i */
  uint64_t aliases;        /* bit i: an output may share memory with parameter i */
  int32_t random;          /* two calls with equal arguments may differ */
  int32_t kept;            /* called for another effect than its outputs */
  int32_t opaque;          /* its effects are unknown: nothing moves across it */
  int32_t commutes;        /* its first two arguments may change places ... */
  int32_t commutes_if_one; /* ... if the argument at this index is the number 1; -1: always */
} bringup_operator_facts;

typedef struct bringup_engine_providers {
  uint32_t struct_size;
  void* user;
  /* The facts of an operator, its overload chosen for these arguments. */
  int32_t (*schema)(void* user, const char* type, const bringup_argument* arguments, uint32_t count,
                    bringup_operator_facts* facts);
  /* Writes the description of every output of a node; rank -1 for what is not a tensor. */
  int32_t (*infer_shape)(void* user, bringup_ir_graph graph, bringup_ir_node node,
                         bringup_tensor_desc* outputs, uint32_t count);
  /* Whether the target can execute the node, and if not, why. */
  int32_t (*supports)(void* user, bringup_ir_graph graph, bringup_ir_node node, int32_t* supported,
                      const char** reason);
  /* The outputs of a node whose inputs are all constants. */
  int32_t (*evaluate)(void* user, bringup_ir_graph graph, bringup_ir_node node,
                      bringup_constant* outputs, uint32_t count);
} bringup_engine_providers;

/* --- running */

typedef struct bringup_option {
  const char* key;
  bringup_argument value; /* NONE, BOOL, INT, FLOAT or STRING */
} bringup_option;

typedef struct bringup_run_options {
  uint32_t struct_size;
  const char* const* names; /* NULL: all registered passes; else as many as name_count */
  uint32_t name_count;
  const bringup_option* options; /* what passes may read with get_option */
  uint32_t option_count;
  const bringup_option* versions; /* pass name -> STRING; of others the newest runs */
  uint32_t version_count;
  int32_t infer_shapes; /* 1: shapes are inferred after the first stage */
  int32_t fold;         /* 1: operators on constants are computed once, before the last stage */
} bringup_run_options;

typedef enum bringup_pass_outcome {
  BRINGUP_OUTCOME_UNCHANGED = 0,
  BRINGUP_OUTCOME_CHANGED = 1,
  BRINGUP_OUTCOME_SKIPPED = 2,
  BRINGUP_OUTCOME_FAILED = 3
} bringup_pass_outcome;

typedef struct bringup_pass_result {
  uint32_t struct_size;
  int32_t outcome; /* of bringup_pass_outcome */
  int32_t stage;
  int32_t status; /* of a failure: what the hook returned, or a bringup_engine_status */
  uint64_t matches;
  uint64_t refused;
  uint64_t edits;
  uint64_t instance_id; /* unique in the process */
  double seconds;
  const char* name;      /* these live until report_release */
  const char* message;   /* why it was skipped or failed; else "" */
  const char* near_miss; /* the candidate that came closest, and what was wrong; else "" */
  const char* traceback; /* of a failed pass in Python; else "" */
} bringup_pass_result;

typedef uint64_t bringup_run_report; /* lives until report_release */

/* --- passes written in Python, for programs that are not */

/* Where Python and its passes are. NULL stands for what is said; strings are copied. Lists of paths
 * have ":" between them. */
typedef struct bringup_python_options {
  uint32_t struct_size;
  const char* bridge;         /* libbringup_bridge.so; NULL: beside libbringup_engine.so */
  const char* python_library; /* libpython3.X.so, where the process has no interpreter yet; NULL:
                                 that of python_program, else the one that the loader finds */
  const char* python_program; /* an interpreter whose environment is used (a venv's bin/python);
                                 NULL: of the environment in which the bridge is installed */
  const char* sys_path;       /* folders before all others on sys.path, for this round */
  const char* pass_path;      /* files and folders with passes, before those of the environment */
  const char* modules;        /* modules that register passes when they are imported; "," between */
  double time_limit;          /* seconds that one pass may take on one graph; 0: no limit */
} bringup_python_options;

typedef enum bringup_python_state {
  BRINGUP_PYTHON_NONE = 0,     /* no interpreter is used (yet) */
  BRINGUP_PYTHON_OWNED = 1,    /* one that python_load began */
  BRINGUP_PYTHON_BORROWED = 2, /* one that the program itself began */
  BRINGUP_PYTHON_ENDED = 3     /* it was shut down; a process cannot use Python passes again */
} bringup_python_state;

typedef struct bringup_engine_api {
  uint32_t struct_size;
  uint32_t abi_version; /* BRINGUP_ENGINE_ABI */

  /* --- errors: why the last call on this thread failed (valid until the next one); set_error: why
   * the hook or provider that is running is about to fail. */
  const char* (*last_error)(void);
  void (*set_error)(const char* message);

  /* --- registering. While a library registers, nothing is visible to others until all of it is. */
  int32_t (*register_pass)(const bringup_pass_definition* definition);
  int32_t (*unregister_pass)(const char* name, const char* version); /* NULL: every version */
  uint32_t (*pass_count)(void);
  /* In running order. NOT_FOUND when there are no more than `index`. */
  int32_t (*pass_info)(uint32_t index, bringup_pass_info* info);
  /* Loading a library again, unchanged, does nothing. *count: how many passes it has. */
  int32_t (*load_library)(const char* path, uint32_t* count);
  /* Forgets its passes; it is closed when the last run that uses them has ended. */
  int32_t (*unload_library)(const char* path);

  /* --- the context of a hook */
  int32_t (*context_pass_name)(bringup_pass_context context, const char** name);
  int32_t (*context_instance_id)(bringup_pass_context context, uint64_t* id);
  /* NOT_FOUND, listing the options, when there is none like this. */
  int32_t (*context_option)(bringup_pass_context context, const char* key, bringup_argument* value);
  /* In `patterns`: one more pattern, handed over. */
  int32_t (*add_pattern)(bringup_pass_context context, bringup_ir_pattern pattern);

  /* --- making graphs. Without providers operators are what they are called: unchecked, pure, with
   * as many outputs as asked for. A graph made inside a hook has the providers of the graph that is
   * being rewritten. */
  int32_t (*graph_create)(const char* name, bringup_ir_graph* graph);
  int32_t (*graph_release)(bringup_ir_graph graph);
  int32_t (*graph_set_providers)(bringup_ir_graph graph, const bringup_engine_providers* providers);
  /* A new input, after those there are; `desc` may be NULL. */
  int32_t (*add_input)(bringup_ir_graph graph, const char* name, const bringup_tensor_desc* desc,
                       bringup_ir_value* value);
  /* A constant; its data are copied. */
  int32_t (*add_constant)(bringup_ir_graph graph, const char* name,
                          const bringup_constant* constant, bringup_ir_value* value);
  /* A new node before `before` (BRINGUP_NO_NODE: at the end). `outputs` counts its outputs where
   * the operator does not (0: one). */
  int32_t (*add_node)(bringup_ir_graph graph, const char* type, const bringup_argument* arguments,
                      uint32_t count, uint32_t outputs, bringup_ir_node before,
                      bringup_ir_node* node);
  /* What the graph returns. */
  int32_t (*set_outputs)(bringup_ir_graph graph, const bringup_ir_value* values, uint32_t count);

  /* --- reading graphs */
  int32_t (*graph_name)(bringup_ir_graph graph, const char** name);
  int32_t (*node_count)(bringup_ir_graph graph, uint32_t* count);
  /* In order; the last node returns the graph's results. Writes BRINGUP_NO_NODE at the end. */
  int32_t (*first_node)(bringup_ir_graph graph, bringup_ir_node* node);
  int32_t (*next_node)(bringup_ir_graph graph, bringup_ir_node node, bringup_ir_node* next);
  /* All nodes of one type, in order. */
  int32_t (*find_nodes)(bringup_ir_graph graph, const char* type, const bringup_ir_node** nodes,
                        uint32_t* count);
  int32_t (*find_node)(bringup_ir_graph graph, const char* name, bringup_ir_node* node);
  int32_t (*graph_inputs)(bringup_ir_graph graph, const bringup_ir_value** values, uint32_t* count);
  int32_t (*graph_outputs)(bringup_ir_graph graph, const bringup_ir_value** values,
                           uint32_t* count);
  int32_t (*node_type)(bringup_ir_graph graph, bringup_ir_node node, const char** type);
  int32_t (*node_name)(bringup_ir_graph graph, bringup_ir_node node, const char** name);
  int32_t (*node_argument_count)(bringup_ir_graph graph, bringup_ir_node node, uint32_t* count);
  /* By position in the operator's schema. */
  int32_t (*node_argument)(bringup_ir_graph graph, bringup_ir_node node, uint32_t index,
                           bringup_argument* argument);
  /* By its name in the operator's schema. */
  int32_t (*node_argument_named)(bringup_ir_graph graph, bringup_ir_node node, const char* name,
                                 bringup_argument* argument);
  /* Every value that the node reads, in order; one that is read twice stands twice. */
  int32_t (*node_inputs)(bringup_ir_graph graph, bringup_ir_node node,
                         const bringup_ir_value** values, uint32_t* count);
  int32_t (*node_output_count)(bringup_ir_graph graph, bringup_ir_node node, uint32_t* count);
  /* Whether a call only computes its outputs: 0 or 1. */
  int32_t (*node_is_pure)(bringup_ir_graph graph, bringup_ir_node node, int32_t* pure);
  /* The pass that made the node, "" for none; and the names of the nodes that it stands for. */
  int32_t (*node_rule)(bringup_ir_graph graph, bringup_ir_node node, const char** rule);
  int32_t (*node_origin)(bringup_ir_graph graph, bringup_ir_node node, const char* const** names,
                         uint32_t* count);
  /* The nodes that read a value, each once, in order. */
  int32_t (*value_users)(bringup_ir_graph graph, bringup_ir_value value,
                         const bringup_ir_node** nodes, uint32_t* count);
  /* NOT_FOUND when nothing is known; INVALID in the stage before shape inference, for what is not
   * an input or a constant. */
  int32_t (*value_desc)(bringup_ir_graph graph, bringup_ir_value value, bringup_tensor_desc* desc);
  /* The data of a constant; NOT_FOUND when they are not known. */
  int32_t (*node_constant)(bringup_ir_graph graph, bringup_ir_node node,
                           bringup_constant* constant);
  /* Whether the target can execute the node, and if not, why. */
  int32_t (*node_supported)(bringup_ir_graph graph, bringup_ir_node node, int32_t* supported,
                            const char** reason);

  /* --- changing graphs */
  /* Every reader of `old` reads `new_value`, but not the node of `new_value` itself. */
  int32_t (*replace_all_uses)(bringup_ir_graph graph, bringup_ir_value old,
                              bringup_ir_value new_value);
  int32_t (*set_argument)(bringup_ir_graph graph, bringup_ir_node node, uint32_t index,
                          const bringup_argument* argument);
  /* INVALID when the node has readers. */
  int32_t (*erase_node)(bringup_ir_graph graph, bringup_ir_node node);
  int32_t (*move_before)(bringup_ir_graph graph, bringup_ir_node node, bringup_ir_node before);

  /* --- patterns */
  /* A pattern: the graph's inputs match any value. Hands the graph over. */
  int32_t (*pattern_create)(bringup_ir_graph graph, const char* name, bringup_ir_pattern* pattern);
  int32_t (*pattern_release)(bringup_ir_pattern pattern);
  /* Captures a value under the next number, and a name unless that is NULL. */
  int32_t (*pattern_capture)(bringup_ir_pattern pattern, bringup_ir_value value, const char* name);

  /* --- a match */
  int32_t (*match_pattern)(bringup_match match, const char** name);
  /* The graph that is being rewritten. */
  int32_t (*match_graph)(bringup_match match, bringup_ir_graph* graph);
  /* The matched nodes in graph order, without the producers of the inputs. */
  int32_t (*match_nodes)(bringup_match match, const bringup_ir_node** nodes, uint32_t* count);
  /* What a value of the pattern stands for. */
  int32_t (*match_value)(bringup_match match, bringup_ir_value in_pattern, bringup_ir_value* value);
  int32_t (*match_captured)(bringup_match match, uint32_t index, bringup_ir_value* value);
  /* A value captured under a name: a VALUE; or what stands where the pattern has a named ANY. */
  int32_t (*match_named)(bringup_match match, const char* name, bringup_argument* argument);

  /* --- running passes over a graph that graph_create made */
  /* FAILED when a pass failed; the report is written all the same. `options` may be NULL. */
  int32_t (*run_passes)(bringup_ir_graph graph, const bringup_run_options* options,
                        bringup_run_report* report);
  int32_t (*report_count)(bringup_run_report report, uint32_t* count);
  int32_t (*report_result)(bringup_run_report report, uint32_t index, bringup_pass_result* result);
  /* Why the run failed, "" when it did not. */
  int32_t (*report_failure)(bringup_run_report report, const char** message);
  int32_t (*report_release)(bringup_run_report report);

  /* --- pieces of patterns (this and all below: where BRINGUP_ENGINE_HAS says so). `graph` is one
   * that becomes a pattern; a piece belongs to it. The first three write an argument for add_node,
   * also inside of lists. */
  int32_t (*pattern_any)(bringup_ir_graph graph, const bringup_any_piece* piece,
                         bringup_argument* argument);
  int32_t (*pattern_constant)(bringup_ir_graph graph, const bringup_constant_piece* piece,
                              bringup_argument* argument);
  int32_t (*pattern_list)(bringup_ir_graph graph, const bringup_list_piece* piece,
                          bringup_argument* argument);
  /* A value that is any one of the alternatives, two or more, tried in order: values (one at
   * least), other arguments, pieces. `name`, which may be NULL, is for match_chosen. */
  int32_t (*pattern_one_of)(bringup_ir_graph graph, const bringup_argument* alternatives,
                            uint32_t count, const char* name, bringup_ir_value* value);
  /* `present`, or where that is absent `otherwise`. NULL: the first value that the operator reads
   * stands in its place; of an input, the argument may be NONE. match_chosen: 0 present, 1 absent.
   * Inputs that only an absent part reads are NONE where the replacement reads them. */
  int32_t (*pattern_optional)(bringup_ir_graph graph, bringup_ir_value present,
                              const bringup_argument* otherwise, const char* name,
                              bringup_ir_value* value);
  /* What the tensor that a value stands for must look like; once for each value. */
  int32_t (*pattern_where)(bringup_ir_graph graph, bringup_ir_value value,
                           const bringup_tensor_form* form);
  /* What a pattern compares, both unless this says 0: the data of constants where it knows them,
   * and arguments that are no values. */
  int32_t (*pattern_compare)(bringup_ir_pattern pattern, int32_t constant_values,
                             int32_t attributes);

  /* --- more about a match. match_named also gives a list (LIST) and a named size (INT, SYMBOL). */
  /* Which alternative of this name matched; NOT_FOUND also when the match does not reach it. */
  int32_t (*match_chosen)(bringup_match match, const char* name, uint32_t* alternative);
  /* The matches of the items of a list that has `each`; they end with the hook. */
  int32_t (*match_item_count)(bringup_match match, const char* name, uint32_t* count);
  int32_t (*match_item)(bringup_match match, const char* name, uint32_t index, bringup_match* item);

  /* In a replacement: a value that stands for `value` of the graph that is being rewritten, besides
   * the replacement's inputs; an item of a list, for example. */
  int32_t (*add_outer)(bringup_ir_graph replacement, bringup_ir_graph graph, bringup_ir_value value,
                       bringup_ir_value* outer);

  /* --- boundaries: replacing a part of a graph that a pass picked by hand */
  /* The nodes inside, in order. FAILED says why the part cannot be replaced: it is not closed (it
   * needs an input of the graph that is not among its inputs), a value inside is used outside, it
   * writes memory or is random, or replacing it would make a cycle or cross a write. */
  int32_t (*boundary_nodes)(bringup_ir_graph graph, const bringup_boundary* boundary,
                            const bringup_ir_node** nodes, uint32_t* count);
  /* Puts `replacement` (handed over) in the place of the part and writes the new nodes, unless
   * `nodes` is NULL. FAILED as above, or when numbers of inputs or outputs differ, or the shape,
   * dtype or device of an output. After a failure graph and replacement are as they were. */
  int32_t (*boundary_replace)(bringup_ir_graph graph, const bringup_boundary* boundary,
                              bringup_ir_graph replacement, const bringup_ir_node** nodes,
                              uint32_t* count);

  /* --- memory: ends all arrays that reading functions returned for this handle so far. */
  int32_t (*graph_release_arrays)(bringup_ir_graph graph);

  /* --- control edges: `target`, an operator, runs after `source`, an operator or an input, whether
   * or not it reads anything of it. INVALID for other nodes, and for the removal of an edge that
   * there is not. In a pattern an edge asks for one between the nodes that are found; from an input
   * it leads from what computes it. Edges of a graph that enter or leave what is replaced are kept
   * at what replaces it; edges inside of it go, and those of the replacement come. What was added
   * twice is there once. The graph of torch.compile has no control edges: a pass that leaves one
   * there fails. */
  int32_t (*add_control_edge)(bringup_ir_graph graph, bringup_ir_node source,
                              bringup_ir_node target);
  int32_t (*remove_control_edge)(bringup_ir_graph graph, bringup_ir_node source,
                                 bringup_ir_node target);
  /* The sources of the edges to a node, in the order in which they were added; the targets of those
   * from it, in the order of the graph. */
  int32_t (*node_control_inputs)(bringup_ir_graph graph, bringup_ir_node node,
                                 const bringup_ir_node** nodes, uint32_t* count);
  int32_t (*node_control_users)(bringup_ir_graph graph, bringup_ir_node node,
                                const bringup_ir_node** nodes, uint32_t* count);

  /* --- passes written in Python. They run in run_passes beside all others, on the program's own
   * graph, and take the interpreter's lock only while Python code runs; an exception fails the pass
   * and stands in its result. A thread that calls these may hold the lock or not.
   *
   * Begins a round, which ends the one before: reads the environment (BRINGUP_PASS_PATH,
   * ASCEND_GE_PY_PASS_PATH, PYTHONPATH) again, and finds and registers passes. Starts an
   * interpreter if the process has none. `options` may be NULL; *count (may be NULL): the passes in
   * Python. FAILED, and none is registered, when one cannot be loaded. */
  int32_t (*python_load)(const bringup_python_options* options, uint32_t* count);
  /* Ends the round: forgets its passes and their modules; the interpreter stays. A run that has
   * begun keeps the passes that it uses. Does nothing where nothing was loaded. */
  int32_t (*python_unload)(void);
  /* For the end of the process: ends the round, then the interpreter if python_load began it, and
   * closes the bridge. May be called again, from any thread, and after the program ended its own
   * interpreter. FAILED while runs use it. */
  int32_t (*python_shutdown)(void);
  int32_t (*python_state)(void); /* of bringup_python_state */
  /* Runs a command of `bringup` ("compile", "model.onnx", ...) in this process. */
  int32_t (*python_command)(const bringup_python_options* options, const char* const* arguments,
                            uint32_t count, int32_t* exit_code);
} bringup_engine_api;

/* Whether the engine that gave `api` has a function: the table of an older one is shorter. */
#define BRINGUP_ENGINE_HAS(api, function) \
  ((api)->struct_size >= offsetof(bringup_engine_api, function) + sizeof((api)->function))

/* The table of this process, or NULL when the engine does not speak that version. */
const bringup_engine_api* bringup_engine_get(uint32_t abi_version);

/* What a library with passes exports. */
typedef int32_t (*bringup_register_passes_fn)(const bringup_engine_api* api);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* BRINGUP_ENGINE_H_ */
