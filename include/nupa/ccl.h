/* Collectives among the ranks of a job: libnupa_ccl, in C.
 *
 * A communicator is a group of ranks 0 to N-1, each of which is a process. All ranks of a communicator call the same
 * collectives on it in the same order. Ranks that share memory (docs/memory.md) exchange data there.
 *
 * Functions return 0 or an errno value, and nupa_ccl_error_text() then says more. Of every function: EINVAL: an
 * argument is none of those that are described. Of functions on a communicator: if it has ended, the value that it has
 * ended by, at once; nupa_ccl_comm_error() names the rank because of which:
 *
 * - ECONNRESET: it is gone.
 * - ETIMEDOUT: it was waited for in vain, for as long as NUPA_CCL_TIMEOUT says (in seconds; 300).
 * - ECANCELED: it has called nupa_ccl_comm_abort().
 * - EPROTO: it has called what does not fit to what another one has called (see "checking").
 * - Others: it has reached a limit of its process or system.
 *
 * All ranks' operations end then.
 *
 * Counts are of elements, offsets too. Arrays are ordinary memory and may lie anywhere. In place: where nothing else is
 * said `in` may be `out`; otherwise arrays of one call must not overlap.
 *
 * Each operation takes `request`: null, and it is done when the call returns; else it is begun, the arrays must stay as
 * they are, and nupa_ccl_wait() ends it. Operations are done in the order of their calls.
 *
 * Any thread may call anything but for what is said; calls on one communicator are done one after the other. A process
 * that forks goes on with its communicators in the parent only: calls on them return ENODEV in a child, which may
 * destroy and free what it has inherited, and make communicators of its own.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NUPA_CCL_VERSION 1

typedef struct nupa_ccl_comm nupa_ccl_comm;
typedef struct nupa_ccl_request nupa_ccl_request;

/* Names a meeting of ranks. Any bytes-carrying way may bring it to them; whoever has it may take part. */
typedef struct nupa_ccl_unique_id {
  unsigned char bytes[128];
} nupa_ccl_unique_id;

typedef enum nupa_ccl_type {
  NUPA_CCL_INT8 = 0,
  NUPA_CCL_UINT8 = 1,
  NUPA_CCL_INT16 = 2,
  NUPA_CCL_UINT16 = 3,
  NUPA_CCL_INT32 = 4,
  NUPA_CCL_UINT32 = 5,
  NUPA_CCL_INT64 = 6,
  NUPA_CCL_UINT64 = 7,
  NUPA_CCL_FLOAT16 = 8,  /* IEEE 754 binary16 */
  NUPA_CCL_BFLOAT16 = 9, /* the upper half of a float32 */
  NUPA_CCL_FLOAT32 = 10,
  NUPA_CCL_FLOAT64 = 11,
  NUPA_CCL_FLOAT8_E4M3 = 12, /* OCP 8-bit floating point (OFP8): no infinities, largest 448 */
  NUPA_CCL_FLOAT8_E5M2 = 13  /* OFP8: infinities, largest finite 57344 */
} nupa_ccl_type;

/* How elements of several ranks become one. Floating point of 8 and 16 bits is added up in float32 and rounded once.
 * NaN of any is NaN. Ranks that share memory, and up to 16 others, reduce each element in the order of the ranks and
 * round once. Where there are several on each of several hosts, or more, ranks are taken together in groups, by size
 * and links. With NUPA_CCL_DETERMINISTIC=1 on all ranks (up to 512) it is always in the order of the ranks: the same
 * bits whatever the size, the algorithm and the hosts; docs/collectives.md says what that costs. */
typedef enum nupa_ccl_builtin_op {
  NUPA_CCL_SUM = 0, /* integers wrap */
  NUPA_CCL_PRODUCT = 1,
  NUPA_CCL_MIN = 2,
  NUPA_CCL_MAX = 3,
  NUPA_CCL_AVERAGE = 4, /* integers: of the sum that wraps, towards 0 */
  NUPA_CCL_BIT_AND = 6, /* this and all below: integers only */
  NUPA_CCL_BIT_OR = 7,
  NUPA_CCL_BIT_XOR = 8,
  NUPA_CCL_LOGICAL_AND = 9, /* 1 or 0 */
  NUPA_CCL_LOGICAL_OR = 10,
  NUPA_CCL_LOGICAL_XOR = 11
} nupa_ccl_builtin_op;
/* One of these, or one that was made by the functions below. */
typedef uint32_t nupa_ccl_op;

/* result[i] = result[i] op next[i] for i < count. Has to be associative; called by any thread. */
typedef void (*nupa_ccl_function)(void* result, const void* next, size_t count, int type, void* argument);
/* ENOSPC: there are 65,536. */
int nupa_ccl_op_create(nupa_ccl_function function, void* argument, nupa_ccl_op* op);
/* A sum of what each rank multiplies with its own `factor`, one element of `type`, for reductions of that type. */
int nupa_ccl_op_create_premultiplied_sum(const void* factor, nupa_ccl_type type, nupa_ccl_op* op);
/* While no operation uses it. */
int nupa_ccl_op_destroy(nupa_ccl_op op);

/* Why the last call of this thread that failed did so. Never null; valid until the thread's next call. */
const char* nupa_ccl_error_text(void);

/* ---- communicators -------------------------------------------------------------------------------------------- */

/* Ranks that have this id meet in this process, as long as it lives. Errors of sockets and threads. */
int nupa_ccl_get_unique_id(nupa_ccl_unique_id* id);

/* All `ranks` ranks call it with the same id and each its own `rank`; it returns when all have met. With one id that
 * may be done again and again. ETIMEDOUT: ranks are missing (which ones is said); ECONNREFUSED, EHOSTUNREACH and
 * others: no way leads to the process of the id; ECONNABORTED: it is gone; EEXIST: somebody is this rank; ENODEV,
 * EACCES, ENOMEM and others: this process cannot open the device. */
int nupa_ccl_comm_init_rank(nupa_ccl_comm** comm, uint32_t ranks, const nupa_ccl_unique_id* id, uint32_t rank);
/* The same without an id: all know `where` they meet, which is one of
 *
 *   tcp://HOST:PORT             rank 0 listens there: at an address that is given as a number, at localhost, at all
 *   tcp://HOST:PORT?key=TEXT    addresses of its host otherwise. HOST may be IPv6 in brackets. Whoever reaches the port
 *                               and knows the key (or there is none) may take part; it crosses the network as a hash
 *   file:///PATH                rank 0 writes there who it is, in a file system of all ranks, readable by its user only
 *
 * Ranks may come in any order, within the time limit; when all have met the port and the path are free again. Only one
 * job at a time can meet at one place. Errors are those of init_rank, and ETIMEDOUT: rank 0 does not come (others wait
 * for one that listens, also where one has gone); EADDRINUSE, EADDRNOTAVAIL: rank 0 cannot listen there; EHOSTUNREACH:
 * HOST is not known; EACCES: the file is another user's; EALREADY, ECONNABORTED: whoever listens there sends this rank
 * away, as it would with another key; errors of files. */
int nupa_ccl_comm_init_from(nupa_ccl_comm** comm, uint32_t ranks, const char* where, uint32_t rank);
/* The ranks of the job that this process was started in. Asked are, in this order:
 *
 *   NUPA_CCL_ROOT    set by `nupa launch`, or by hand to what init_from takes; with NUPA_RANK and NUPA_WORLD_SIZE, or
 *                    the rank and the number of torchrun, Open MPI, PMI or Slurm
 *   PMIx             (PMIX_NAMESPACE, PMIX_RANK) `mpirun` of Open MPI 4 and 5, `srun --mpi=pmix`; by libpmix.so.2
 *   PyTorch's        RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: as tcp://MASTER_ADDR:MASTER_PORT
 *
 * It may be called again and again, by all. Errors are those of both above, and ENOENT: none of these is there, or not
 * enough (what was looked for is said); ENOSYS: PMIx has no library here; EIO: the PMIx server refuses; ENOTSUP:
 * torchrun itself has MASTER_PORT. */
int nupa_ccl_comm_init(nupa_ccl_comm** comm);

/* Ranks of one `color` become a communicator of their own, numbered by `key`, and by rank where keys are equal. A
 * negative color: none, *made is null. A collective. */
int nupa_ccl_comm_split(nupa_ccl_comm* comm, int64_t color, int64_t key, nupa_ccl_comm** made);
/* Another communicator of the same ranks. A collective. */
int nupa_ccl_comm_dup(nupa_ccl_comm* comm, nupa_ccl_comm** made);
/* After ranks are gone: those who are left become a communicator, in the order that they had. Without whoever was
 * waited for in vain, too, even if it comes back. All who are left have to call it, also if it was another one who has
 * seen that somebody is gone (all operations end then); whoever does not within NUPA_CCL_TIMEOUT is left out. The old
 * one still has to be destroyed. ECONNABORTED: the others have gone on without this rank. If one more dies meanwhile
 * the new communicator may have it, and end at once: then that one is to be shrunk. */
int nupa_ccl_comm_shrink(nupa_ccl_comm* comm, nupa_ccl_comm** made);

/* Frees it when all ranks have called this: a collective, unless the communicator has ended. Requests have been waited
 * for. Null is none. */
int nupa_ccl_comm_destroy(nupa_ccl_comm* comm);
/* Ends what all ranks have under way (ECANCELED). It still has to be destroyed. */
int nupa_ccl_comm_abort(nupa_ccl_comm* comm);

int nupa_ccl_comm_rank(const nupa_ccl_comm* comm, uint32_t* rank);
int nupa_ccl_comm_size(const nupa_ccl_comm* comm, uint32_t* ranks);
/* *error: 0, or why the communicator has ended; *rank: because of whom, UINT32_MAX: nobody. Either may be null. */
int nupa_ccl_comm_error(const nupa_ccl_comm* comm, int* error, uint32_t* rank);

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* Memory that ranks that share memory read and write of each other: an operation whose arrays lie there on all ranks is
 * spared the copies. Whole pages, zeroed; null: there is none, nupa_ccl_error_text() says
 * why. */
void* nupa_ccl_alloc(size_t bytes);
/* While no operation uses it. EINVAL: nothing begins there. */
int nupa_ccl_free(void* memory);

/* ---- operations ----------------------------------------------------------------------------------------------- */

/* Until it is done: its result. The request is gone. */
int nupa_ccl_wait(nupa_ccl_request* request);
/* *done: whether it is; the request stays. */
int nupa_ccl_test(nupa_ccl_request* request, int* done);

int nupa_ccl_barrier(nupa_ccl_comm* comm, nupa_ccl_request** request);

/* `count` elements of `root` come to all. */
int nupa_ccl_broadcast(void* data, size_t count, nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm,
                       nupa_ccl_request** request);

/* The root gets `count` elements of each rank, one rank's after the other's. In place: the root's `in` is its block. */
int nupa_ccl_gather(const void* in, void* out, size_t count, nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm,
                    nupa_ccl_request** request);
/* This rank gives `count`, the root gets counts[r] of rank r at offsets[r]; these are the root's only. */
int nupa_ccl_gatherv(const void* in, size_t count, void* out, const size_t* counts, const size_t* offsets,
                     nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm, nupa_ccl_request** request);

/* Each rank gets its `count` elements of the root's array. In place: the root's `out` is its block. */
int nupa_ccl_scatter(const void* in, void* out, size_t count, nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm,
                     nupa_ccl_request** request);
int nupa_ccl_scatterv(const void* in, const size_t* counts, const size_t* offsets, void* out, size_t count,
                      nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm, nupa_ccl_request** request);

/* Every rank gets `count` elements of each. In place: `in` is this rank's block of `out`. */
int nupa_ccl_all_gather(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_comm* comm,
                        nupa_ccl_request** request);
/* counts[r] of rank r at offsets[r]; the same on all ranks. */
int nupa_ccl_all_gatherv(const void* in, void* out, const size_t* counts, const size_t* offsets, nupa_ccl_type type,
                         nupa_ccl_comm* comm, nupa_ccl_request** request);

/* Rank s's block r becomes rank r's block s, `count` elements each. */
int nupa_ccl_all_to_all(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_comm* comm,
                        nupa_ccl_request** request);
/* In place: counts and offsets of both are the same. */
int nupa_ccl_all_to_allv(const void* in, const size_t* in_counts, const size_t* in_offsets, void* out,
                         const size_t* out_counts, const size_t* out_offsets, nupa_ccl_type type, nupa_ccl_comm* comm,
                         nupa_ccl_request** request);

/* The root gets the reduction of all ranks' `count` elements. */
int nupa_ccl_reduce(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op, uint32_t root,
                    nupa_ccl_comm* comm, nupa_ccl_request** request);
/* All get it. */
int nupa_ccl_all_reduce(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op,
                        nupa_ccl_comm* comm, nupa_ccl_request** request);
/* Each rank gets its block, `count` elements, of the reduction. In place: `out` is this rank's block of `in`. */
int nupa_ccl_reduce_scatter(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op,
                            nupa_ccl_comm* comm, nupa_ccl_request** request);
/* counts[r] for rank r, one rank's after the other's; the same on all ranks. */
int nupa_ccl_reduce_scatterv(const void* in, void* out, const size_t* counts, nupa_ccl_type type, nupa_ccl_op op,
                             nupa_ccl_comm* comm, nupa_ccl_request** request);
/* Rank r gets the reduction of ranks 0 to r. */
int nupa_ccl_scan(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op, nupa_ccl_comm* comm,
                  nupa_ccl_request** request);
/* Of ranks 0 to r-1; rank 0's `out` stays as it is. NUPA_CCL_AVERAGE is not for these two: EINVAL. */
int nupa_ccl_exscan(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op, nupa_ccl_comm* comm,
                    nupa_ccl_request** request);

/* ---- messages --------------------------------------------------------------------------------------------------- */

/* These are not in the order of the collectives: each send has one receive, with its tag (0 to 2^31-1). Messages
 * between two ranks with one tag are received in the order in which they were sent. A send is done when the array may
 * be written to again, which may be before it is received. */

#define NUPA_CCL_ANY_RANK UINT32_MAX
#define NUPA_CCL_ANY_TAG (-1)

/* What a receive got. */
typedef struct nupa_ccl_status {
  uint32_t rank;
  int32_t tag;
  size_t count; /* of elements that were sent */
} nupa_ccl_status;

int nupa_ccl_send(const void* data, size_t count, nupa_ccl_type type, uint32_t rank, int32_t tag, nupa_ccl_comm* comm,
                  nupa_ccl_request** request);
/* Room for `count` elements; EMSGSIZE: more were sent, the rest is lost. `status` may be null; it is written when the
 * receive is done. */
int nupa_ccl_recv(void* data, size_t count, nupa_ccl_type type, uint32_t rank, int32_t tag, nupa_ccl_comm* comm,
                  nupa_ccl_status* status, nupa_ccl_request** request);
/* Both at once. */
int nupa_ccl_sendrecv(const void* in, size_t in_count, uint32_t to, int32_t in_tag, void* out, size_t out_count,
                      uint32_t from, int32_t out_tag, nupa_ccl_type type, nupa_ccl_comm* comm, nupa_ccl_status* status);

/* Calls of this thread between these two are one: they are begun by group_end, and none of them is waited for before
 * all are begun. They take no request; that of group_end, if it is not null, is for all of them. Its error is that of
 * the first that failed. Groups may be nested: the outermost counts, and group_end of an inner one takes no request:
 * EINVAL, and the inner one has ended. */
int nupa_ccl_group_start(void);
int nupa_ccl_group_end(nupa_ccl_request** request);

/* ---- again and again -------------------------------------------------------------------------------------------- */

/* Calls with the same arguments each time, as MPI's persistent operations are. */
typedef struct nupa_ccl_persistent nupa_ccl_persistent;

/* Ends a group of this thread none of whose calls is done: they are kept. Their arrays have to stay where they are as
 * long as they may be done, lists of counts are kept themselves. EINVAL: it is a part of another group, or there is
 * none. */
int nupa_ccl_group_keep(nupa_ccl_persistent** kept);
/* Does them, as group_end does those of a group: each rank as often as the others. They may be begun again before they
 * are done. In a group they are a part of it. */
int nupa_ccl_start(nupa_ccl_persistent* kept, nupa_ccl_request** request);
/* When all that was begun is done. Null is none. */
int nupa_ccl_persistent_free(nupa_ccl_persistent* kept);

/* ---- checking --------------------------------------------------------------------------------------------------- */

/* With NUPA_CCL_CHECK=1 in the environment of all ranks each call on a communicator, also of comm_split, comm_dup and
 * comm_destroy, is compared before it moves data: its place in the order, operation, type, operator, root, and counts,
 * with lists also those that a sender and a receiver have of each other. If they do not agree the call returns EPROTO
 * on every rank, nupa_ccl_error_text() says who called what, nupa_ccl_comm_error() has the first rank that differs
 * from most, and the communicator has ended. Not compared: whether arrays are in place and which offsets they have,
 * which is each rank's own affair, a rank's factor, what a function of the program does. A receive of another type
 * than was sent returns EPROTO; its communicator goes on. Costs each call the exchange of 64 bytes. */

/* ---- what would be done --------------------------------------------------------------------------------------- */

/* Which algorithm `operation` ("all_reduce", as the functions above are called) runs with arrays of `bytes`, which is
 * `count` times an element's size of a call, and why: "slots: each rank reduces all slots: one barrier". The text is
 * for people; it ends with 0 and is cut where it needs more than `room` bytes. While no operation is under way. On a
 * communicator that has done nothing yet: a collective. */
int nupa_ccl_plan(nupa_ccl_comm* comm, const char* operation, size_t bytes, char* text, size_t room);

/* ---- what is done ----------------------------------------------------------------------------------------------- */

#define NUPA_CCL_NONE (-1)

/* An operation or message, for a program's profiler. Texts stay as long as the process. Times: CLOCK_MONOTONIC, ns. */
typedef struct nupa_ccl_event {
  const char* operation; /* "all_reduce", "all_gatherv", "comm_split", "send" */
  const char* algorithm; /* end: its name, as nupa_ccl_plan() says it; null: it has none, or did not get so far */
  uint32_t communicator; /* counted from 1 on in this process */
  uint32_t rank;         /* this one there */
  uint32_t ranks;
  uint32_t root;   /* messages: the other rank; NUPA_CCL_ANY_RANK: there is none, or anybody */
  uint64_t number; /* collectives: of this communicator's, since somebody looks; messages: of the process's */
  size_t count;    /* of elements, of this rank's array */
  size_t bytes;
  int type;          /* nupa_ccl_type */
  int op;            /* nupa_ccl_builtin_op, 5: a premultiplied sum, 255: a function; NUPA_CCL_NONE: none */
  int error;         /* end: what it returns */
  int64_t queued_ns; /* when it was called */
  int64_t begin_ns;  /* when it had its turn */
  int64_t end_ns;    /* end: when it was done */
  int64_t waited_ns; /* end, collectives: for other ranks */
} nupa_ccl_event;

typedef void (*nupa_ccl_profile)(const nupa_ccl_event* event, void* context);

/* From now on `begin` is called before, and `end` after, each operation and message of all communicators of this
 * process; each may be null, and both: nobody is told any more. The thread is whichever runs the operation: that of the
 * call or of nupa_ccl_wait(), or one of the library; `end` of a message is called by who waits for it. Several threads
 * may call at the same time. They must not call this library. What is under way still ends by the functions that it
 * began with, so `context` has to stay until then. Cost: while none was ever set one load and branch an operation, else
 * two readings of the clock, and two for each time that it waits. ENOMEM. */
int nupa_ccl_set_profiler(nupa_ccl_profile begin, nupa_ccl_profile end, void* context);

/* With NUPA_CCL_TRACE=FILE in the environment each process writes these events to a file (docs/collectives.md). */

#ifdef __cplusplus
}
#endif
