/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Collectives among the ranks of a job: libnupa_ccl, in C.
 *
 * A communicator is a group of ranks 0 to N-1, each of which is a process. Ranks that share memory
 * (docs/design/memory-registration.md) exchange data there; the others use RDMA.
 *
 * **Order.** A function that is described as a collective has to be called by all ranks of the communicator, in the
 * same order, with the same count, type, operator and root. Operations of one communicator are done in the order of
 * their calls. Sends and receives are not in this order.
 *
 * **Results.** Functions return 0 or an errno value; nupa_ccl_error_text() then returns the reason. A call that a
 * rank's own arguments forbid (EINVAL) does nothing and does not count: the other ranks wait for this rank's next
 * call.
 *
 * **End of a communicator.** A communicator ends for good when an operation cannot be finished. All operations of all
 * ranks that have not finished then fail, and further ones fail at once, with the same value. nupa_ccl_comm_error()
 * returns it, with the rank that caused it:
 *
 *   - ECONNRESET: the rank has died.
 *   - ETIMEDOUT: other ranks have waited for the rank for as long as NUPA_CCL_TIMEOUT (in seconds; 300).
 *   - ECANCELED: the rank has called nupa_ccl_comm_abort().
 *   - EPROTO: the rank has called something else than the others, or has other settings (see "Checking").
 *   - Others: the rank has reached a limit of its process or system.
 *
 * nupa_ccl_comm_shrink() continues with the ranks that are left.
 *
 * **Arrays.** Counts and offsets are in elements of the call's type. Arrays are ordinary memory and may lie anywhere.
 * An array whose count is 0 may be null. The array of one rank in one call, times the number of ranks, may have
 * SIZE_MAX / 2 bytes. Input and output must not overlap, except in place: each function describes its in-place rule.
 * Each rank decides for itself whether its arrays are in place.
 *
 * **Requests.** Operations take `request`. If it is null the call blocks until the operation is done. Otherwise the
 * call starts the operation and returns; its arrays must stay as they are until nupa_ccl_wait() has returned. Lists of
 * counts and offsets are copied.
 *
 * **Threads.** Any thread may call any function. Calls of several threads on one communicator are done one after the
 * other. Groups (nupa_ccl_group_start()) and error texts belong to the calling thread.
 *
 * **fork().** A process that forks keeps its communicators in the parent only. In a child, calls on them return
 * ENODEV. The child may destroy and free what it has inherited, and make its own communicators.
 *
 * **Checking.** With NUPA_CCL_CHECK=1 in the environment of all ranks, each collective is compared before it moves
 * data: its place in the order, operation, type, operator, root and counts. Counts that a sender and a receiver have
 * for each other are compared, too, and so are nupa_ccl_comm_split(), nupa_ccl_comm_dup() and nupa_ccl_comm_destroy().
 *
 * If ranks differ, the call returns EPROTO on every rank, and the communicator has ended. nupa_ccl_error_text() then
 * describes the calls, and nupa_ccl_comm_error() returns the first rank that differs from most. A receive of another
 * type than was sent also returns EPROTO, but its communicator continues.
 *
 * Not compared are offsets, in-place use, a rank's factor, and the results of the program's functions. Checking costs
 * each call the exchange of 64 bytes.
 *
 * **Traces.** With NUPA_CCL_TRACE=FILE in the environment each process writes its operations, as nupa_ccl_event, to a
 * file (docs/design/collectives.md).
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Version of this interface. */
#define NUPA_CCL_VERSION 1

/** A communicator: one rank's handle on a group of ranks. */
typedef struct nupa_ccl_comm nupa_ccl_comm;

/** An operation that was started, or a group of them. */
typedef struct nupa_ccl_request nupa_ccl_request;

/** Names a rendezvous of ranks. The program sends it to the other ranks in any way that carries bytes. It holds a
 * secret: any process that has it may take part. */
typedef struct nupa_ccl_unique_id {
  unsigned char bytes[128]; /**< opaque */
} nupa_ccl_unique_id;

/** The types of elements. */
typedef enum nupa_ccl_type {
  NUPA_CCL_INT8 = 0,         /**< int8_t */
  NUPA_CCL_UINT8 = 1,        /**< uint8_t */
  NUPA_CCL_INT16 = 2,        /**< int16_t */
  NUPA_CCL_UINT16 = 3,       /**< uint16_t */
  NUPA_CCL_INT32 = 4,        /**< int32_t */
  NUPA_CCL_UINT32 = 5,       /**< uint32_t */
  NUPA_CCL_INT64 = 6,        /**< int64_t */
  NUPA_CCL_UINT64 = 7,       /**< uint64_t */
  NUPA_CCL_FLOAT16 = 8,      /**< IEEE 754 binary16 */
  NUPA_CCL_BFLOAT16 = 9,     /**< the upper half of a float32 */
  NUPA_CCL_FLOAT32 = 10,     /**< float */
  NUPA_CCL_FLOAT64 = 11,     /**< double */
  NUPA_CCL_FLOAT8_E4M3 = 12, /**< OCP 8-bit floating point (OFP8): no infinities, largest 448 */
  NUPA_CCL_FLOAT8_E5M2 = 13  /**< OFP8: infinities, largest finite 57344 */
} nupa_ccl_type;

/** @name Operators
 * Operators reduce the elements of several ranks to one. Floating point of 8 and 16 bits is added up in float32 and
 * rounded once. The result is NaN if an element of any rank is.
 *
 * Ranks that share memory, and up to 16 others, reduce each element in the order of the ranks and round once. With
 * several ranks on each of several hosts, or with more ranks, ranks are combined in groups that depend on size and
 * links. With NUPA_CCL_DETERMINISTIC=1 on all ranks (up to 512) the order is always that of the ranks: the result has
 * the same bits whatever the size, the algorithm and the hosts. docs/design/collectives.md has the cost.
 * @{
 */

/** The operators of the library. */
typedef enum nupa_ccl_builtin_op {
  NUPA_CCL_SUM = 0,         /**< sum; integers wrap */
  NUPA_CCL_PRODUCT = 1,     /**< product; integers wrap */
  NUPA_CCL_MIN = 2,         /**< minimum; of floating point -0 is below +0 */
  NUPA_CCL_MAX = 3,         /**< maximum; of floating point -0 is below +0 */
  NUPA_CCL_AVERAGE = 4,     /**< sum divided by the number of ranks; integers: of the sum that wraps, towards 0 */
  NUPA_CCL_BIT_AND = 6,     /**< bitwise and; integers only */
  NUPA_CCL_BIT_OR = 7,      /**< bitwise or; integers only */
  NUPA_CCL_BIT_XOR = 8,     /**< bitwise exclusive or; integers only */
  NUPA_CCL_LOGICAL_AND = 9, /**< logical and, 1 or 0; integers only */
  NUPA_CCL_LOGICAL_OR = 10, /**< logical or, 1 or 0; integers only */
  NUPA_CCL_LOGICAL_XOR = 11 /**< logical exclusive or, 1 or 0; integers only */
} nupa_ccl_builtin_op;

/** One of nupa_ccl_builtin_op, or an operator that the functions below have made. */
typedef uint32_t nupa_ccl_op;

/** A program's operator: result[i] = result[i] op next[i] for each i < count. It has to be associative and need not
 * commute. Any thread may call it, several at the same time, and for parts of an array.
 * @param result `count` elements, aligned to 64 bytes, that the function changes
 * @param next `count` elements of later ranks, which it must not change
 * @param count elements
 * @param type nupa_ccl_type of the elements
 * @param argument the argument of nupa_ccl_op_create()
 */
typedef void (*nupa_ccl_function)(void* result, const void* next, size_t count, int type, void* argument);

/** Makes an operator of a function of the program. All ranks use an operator of the same function.
 * @param function the function, not null
 * @param argument any value; each call of `function` gets it
 * @param op receives the operator; not null
 * @return 0 or an errno value:
 *   - EINVAL: `function` or `op` is null.
 *   - ENOSPC: the process has 65,536 made operators.
 */
int nupa_ccl_op_create(nupa_ccl_function function, void* argument, nupa_ccl_op* op);

/** Makes an operator that sums the elements of the ranks, each rank's multiplied by its factor. Each rank makes its own
 * operator.
 * @param factor this rank's factor: one element of `type`, which is copied; not null
 * @param type type of the factor, and of the reductions that the operator can be used for
 * @param op receives the operator; not null
 * @return 0 or an errno value:
 *   - EINVAL: `factor` or `op` is null, or `type` is unknown.
 *   - ENOSPC: the process has 65,536 made operators.
 */
int nupa_ccl_op_create_premultiplied_sum(const void* factor, nupa_ccl_type type, nupa_ccl_op* op);

/** Destroys an operator. No operation that uses it may be under way or kept.
 * @param op an operator of the functions above
 * @return 0, or EINVAL: there is no such operator.
 */
int nupa_ccl_op_destroy(nupa_ccl_op op);
/** @} */

/** Returns why the last call of this thread that failed did so.
 * @return One line of text, never null; empty if no call has failed. It is valid until the thread's next call.
 */
const char* nupa_ccl_error_text(void);

/** @name Communicators
 * @{
 */

/** Opens a rendezvous in this process: ranks that have the id meet here. It lasts as long as the process, and uses a
 * TCP port and a thread.
 * @param id receives the id; not null
 * @return 0 or an errno value:
 *   - EINVAL: `id` is null.
 *   - EIO: the kernel has no random numbers.
 *   - Others: errors of sockets and threads, such as EMFILE and EAGAIN.
 */
int nupa_ccl_get_unique_id(nupa_ccl_unique_id* id);

/** Makes a communicator of all ranks that have the same unique id. All ranks call it, each with its `rank`; it returns
 * when all have met, or after NUPA_CCL_TIMEOUT. Ranks may come in any order. One id can be used repeatedly.
 * @param comm receives the communicator; not null. It is not written after an error
 * @param ranks number of ranks, 1 to 65,536; the same on all ranks
 * @param id an id of nupa_ccl_get_unique_id(); not null
 * @param rank this rank, less than `ranks`
 * @return 0 or an errno value:
 *   - EINVAL: a pointer is null, `rank` or `ranks` is out of range, `id` is no unique id, ranks do not agree on
 *     `ranks`, or a setting in the environment is wrong.
 *   - ECONNREFUSED, EHOSTUNREACH and others: the process of the id cannot be reached.
 *   - ECONNABORTED: the process of the id has ended, or has not made this id.
 *   - EPROTO: its answer is malformed.
 *   - ETIMEDOUT: ranks are missing, and the text names them; or the rendezvous does not answer.
 *   - EEXIST: another process is this rank.
 *   - ENODEV, EACCES, EMFILE, ENOMEM and others: this process cannot open the device (nupa::open_device()).
 *   - ENOTSUP: NUPA_CCL_DETERMINISTIC=1 with more than 512 ranks.
 */
int nupa_ccl_comm_init_rank(nupa_ccl_comm** comm, uint32_t ranks, const nupa_ccl_unique_id* id, uint32_t rank);

/** Makes a communicator of all ranks that meet at a place that they all know. All ranks call it, each with its `rank`;
 * it returns when all have met, or after NUPA_CCL_TIMEOUT. Ranks may come in any order. When all have met, the port
 * and the file are free again. Only one job at a time can meet at one place.
 * @param comm receives the communicator; not null. It is not written after an error
 * @param ranks number of ranks, 1 to 65,536; the same on all ranks
 * @param where the place; not null. One of:
 *   - `tcp://HOST:PORT`: rank 0 listens there. If HOST is a number, it listens at that address; if it is `localhost`,
 *     at 127.0.0.1; otherwise at all addresses of its host. An IPv6 address is written in brackets.
 *   - `tcp://HOST:PORT?key=TEXT`: the same, for processes that know the key. The key crosses the network as a hash,
 *     and a process that reads it there may take part.
 *   - `file:///PATH`: rank 0 writes its address to this file, in a file system of all ranks. Only its user can read
 *     it.
 * @param rank this rank, less than `ranks`
 * @return 0 or an errno value:
 *   - EINVAL: a pointer is null, `rank` or `ranks` is out of range, `where` is malformed, ranks do not agree on
 *     `ranks`, or a setting in the environment is wrong.
 *   - EADDRINUSE, EADDRNOTAVAIL: rank 0 cannot listen there.
 *   - EACCES: the file is another user's, or a folder is not accessible.
 *   - ECONNREFUSED, EHOSTUNREACH and others: rank 0 cannot be reached in time, or HOST cannot be resolved.
 *   - EALREADY, ECONNABORTED: the process that listens there rejects this rank: it has another key, or is of another
 *     job.
 *   - EPROTO: the answer from there is malformed.
 *   - ETIMEDOUT: ranks are missing, and the text names them; or the rendezvous does not answer.
 *   - EEXIST: another process is this rank.
 *   - ENODEV, EACCES, EMFILE, ENOMEM and others: this process cannot open the device (nupa::open_device()).
 *   - ENOTSUP: NUPA_CCL_DETERMINISTIC=1 with more than 512 ranks.
 *   - Others: errors of files, sockets and threads.
 */
int nupa_ccl_comm_init_from(nupa_ccl_comm** comm, uint32_t ranks, const char* where, uint32_t rank);

/** Makes a communicator of the ranks of the job that this process was started in. All ranks call it; it returns when
 * all have met, or after NUPA_CCL_TIMEOUT. It may be called repeatedly, by all ranks.
 *
 * It takes the first of these in the environment:
 *   - NUPA_CCL_ROOT: `nupa launch` sets it, or a person sets it to a place as nupa_ccl_comm_init_from() takes it. Rank
 *     and number of ranks are NUPA_RANK and NUPA_WORLD_SIZE, or those of torchrun, Open MPI, PMI or Slurm.
 *   - PMIX_NAMESPACE and PMIX_RANK: PMIx, that is `mpirun` of Open MPI 4 and 5, or `srun --mpi=pmix`. It needs the
 *     library libpmix.so.2.
 *   - RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as PyTorch has them: the ranks meet at
 *     `tcp://MASTER_ADDR:MASTER_PORT`.
 *
 * @param comm receives the communicator; not null. It is not written after an error
 * @return 0 or an errno value; those of nupa_ccl_comm_init_rank() and nupa_ccl_comm_init_from(), and:
 *   - EINVAL: `comm` is null, or a variable has a value that it cannot have.
 *   - ENOENT: none of these is in the environment, or not all of its variables; the text lists what was looked for.
 *   - ENOSYS: PMIx has no library here.
 *   - EIO: the PMIx server reports an error.
 *   - ENODEV: the launcher knows PMIx of a parent process only.
 *   - ENOTSUP: torchrun itself uses MASTER_PORT.
 */
int nupa_ccl_comm_init(nupa_ccl_comm** comm);

/** Divides a communicator. Ranks of one `color` become a communicator, numbered by `key`, and by rank where keys are
 * equal. A collective: all ranks call it in the same order.
 * @param comm communicator, which stays as it is
 * @param color which of the new communicators this rank joins; negative: none
 * @param key order of this rank in the new communicator
 * @param made receives the new communicator, or null if `color` is negative; not null. It is not written after an
 *   error
 * @return 0 or an errno value:
 *   - EINVAL: `comm` or `made` is null.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - ENOMEM, EMFILE and others: a limit of the process.
 */
int nupa_ccl_comm_split(nupa_ccl_comm* comm, int64_t color, int64_t key, nupa_ccl_comm** made);

/** Makes another communicator of the same ranks, with the same numbers. Its operations are independent of those of
 * `comm`. A collective: all ranks call it in the same order.
 * @param comm communicator, which stays as it is
 * @param made receives the new communicator; not null. It is not written after an error
 * @return As nupa_ccl_comm_split().
 */
int nupa_ccl_comm_dup(nupa_ccl_comm* comm, nupa_ccl_comm** made);

/** Makes a communicator of the ranks that are left after others have died, in the same order. Ranks that ended the
 * communicator by ETIMEDOUT are left out, too, even if they come back. All ranks that are left have to call it, also
 * if another rank has noticed the death: all their operations end then. A rank that does not call it within
 * NUPA_CCL_TIMEOUT is left out.
 *
 * If one more rank dies meanwhile, the new communicator may contain it and end at once: then shrink the new one. The
 * old one still has to be destroyed.
 * @param comm communicator
 * @param made receives the new communicator; not null. It is not written after an error
 * @return 0 or an errno value:
 *   - EINVAL: `comm` or `made` is null.
 *   - ECONNABORTED: the others have continued without this rank.
 *   - EEXIST: another thread of this rank shrinks the communicator.
 *   - ENODEV: a parent process made the communicator.
 *   - ENOMEM, EMFILE and others: a limit of the process.
 */
int nupa_ccl_comm_shrink(nupa_ccl_comm* comm, nupa_ccl_comm** made);

/** Frees a communicator when all ranks have called this. A collective: all ranks call it in the same order, unless the
 * communicator has ended, which returns at once. Wait for all requests before. The communicator is freed whatever it
 * returns.
 * @param comm communicator; null: nothing is done
 * @return 0, also if the communicator had ended before or a parent process made it, or an errno value:
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended in this call.
 */
int nupa_ccl_comm_destroy(nupa_ccl_comm* comm);

/** Ends a communicator for all ranks: operations that are under way and later ones return ECANCELED. It still has to be
 * destroyed. It has no effect on a communicator that has ended, or that a parent process made. It does not wait for
 * other ranks; any thread may call it while others wait for operations.
 * @param comm communicator
 * @return 0, or EINVAL: `comm` is null.
 */
int nupa_ccl_comm_abort(nupa_ccl_comm* comm);

/** Returns this rank's number. It works on a communicator that has ended.
 * @param comm communicator
 * @param rank receives 0 to the number of ranks - 1; not null
 * @return 0, or EINVAL: `comm` or `rank` is null.
 */
int nupa_ccl_comm_rank(const nupa_ccl_comm* comm, uint32_t* rank);

/** Returns the number of ranks. It works on a communicator that has ended.
 * @param comm communicator
 * @param ranks receives the number; not null
 * @return 0, or EINVAL: `comm` or `ranks` is null.
 */
int nupa_ccl_comm_size(const nupa_ccl_comm* comm, uint32_t* ranks);

/** Returns whether and why a communicator has ended. It does not block.
 * @param comm communicator
 * @param error receives 0, or the errno value that the communicator has ended with; may be null. ENODEV: a parent
 *   process made it
 * @param rank receives the rank that caused it, NUPA_CCL_ANY_RANK: none; may be null
 * @return 0, or EINVAL: `comm` is null.
 */
int nupa_ccl_comm_error(const nupa_ccl_comm* comm, int* error, uint32_t* rank);
/** @} */

/** @name Memory
 * @{
 */

/** Allocates memory that ranks that share memory can read and write directly: an operation whose arrays lie there on
 * all ranks saves copies. On a host that shares a pool with coherent caches it lies in the pool, if there is room.
 * @param bytes bytes, not 0
 * @return Zeroed whole pages, or null: nupa_ccl_error_text() returns why. Causes are a size of 0, no device, and
 *   limits of the process.
 */
void* nupa_ccl_alloc(size_t bytes);

/** Frees memory of nupa_ccl_alloc(). No operation may use it.
 * @param memory first byte; null: nothing is done
 * @return 0, or EINVAL: no memory of nupa_ccl_alloc() begins there.
 */
int nupa_ccl_free(void* memory);
/** @} */

/** @name Requests
 * @{
 */

/** Waits until an operation or group is done, and frees the request, whatever it returns. The waiting thread also moves
 * data.
 * @param request a request; not null, and not waited for by another thread
 * @return 0, or an errno value; for a group that of the first operation that failed:
 *   - EINVAL: `request` is null.
 *   - EMSGSIZE: a receive has too little room (nupa_ccl_recv()).
 *   - EPROTO: with NUPA_CCL_CHECK=1, a receive has another type than the send.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 */
int nupa_ccl_wait(nupa_ccl_request* request);

/** Returns whether an operation or group is done. It does not block and does not move data, which the library's thread
 * does. The request stays: nupa_ccl_wait() returns the result and frees it.
 * @param request a request; not null
 * @param done receives 1: it is done, or 0; not null
 * @return 0, or EINVAL: `request` or `done` is null.
 */
int nupa_ccl_test(nupa_ccl_request* request, int* done);
/** @} */

/** @name Operations
 * The collectives. `count` and `offsets` are in elements of `type`.
 * @{
 */

/** Waits until all ranks have called it. A collective: all ranks call it in the same order.
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, or `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_barrier(nupa_ccl_comm* comm, nupa_ccl_request** request);

/** Copies an array of the root to all ranks. A collective: all ranks call it in the same order, with the same `count`,
 * `type` and `root`.
 * @param data `count` elements, which the root gives and the other ranks receive
 * @param count elements
 * @param type type of the elements
 * @param root rank that gives the data
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type` or `root` is out of range, `data` is null with `count` greater than 0, or the
 *     array is too large.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_broadcast(void* data, size_t count, nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm,
                       nupa_ccl_request** request);

/** Collects an array of each rank at the root. A collective: all ranks call it in the same order, with the same
 * `count`, `type` and `root`. In place: the root's `in` is its block of `out`, that is `out` plus `root` * `count`
 * elements.
 * @param in `count` elements that this rank gives
 * @param out the root: room for `count` elements of each rank, in the order of the ranks; other ranks: not used
 * @param count elements of one rank
 * @param type type of the elements
 * @param root rank that receives the data
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type` or `root` is out of range, an array that is used is null with `count` greater
 *     than 0, or an array is too large.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_gather(const void* in, void* out, size_t count, nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm,
                    nupa_ccl_request** request);

/** Collects arrays of different lengths at the root. A collective: all ranks call it in the same order, with the same
 * `type` and `root`. In place: the root's `in` is its block of `out`, that is `out` plus offsets[root] elements.
 * @param in `count` elements that this rank gives
 * @param count elements that this rank gives; the root's counts[rank]
 * @param out the root: room for the blocks of all ranks, which must not overlap; other ranks: not used
 * @param counts the root: for each rank the elements that it gives; other ranks: not used
 * @param offsets the root: for each rank the position of its block in `out`, in elements; other ranks: not used
 * @param type type of the elements
 * @param root rank that receives the data
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type` or `root` is out of range, a list that is used is null, an array that is used is
 *     null and not empty, or an array is too large.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_gatherv(const void* in, size_t count, void* out, const size_t* counts, const size_t* offsets,
                     nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm, nupa_ccl_request** request);

/** Gives each rank its part of an array of the root. A collective: all ranks call it in the same order, with the same
 * `count`, `type` and `root`. In place: the root's `out` is its block of `in`, that is `in` plus `root` * `count`
 * elements.
 * @param in the root: `count` elements for each rank, in the order of the ranks; other ranks: not used
 * @param out room for `count` elements
 * @param count elements of one rank
 * @param type type of the elements
 * @param root rank that gives the data
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return As nupa_ccl_gather().
 */
int nupa_ccl_scatter(const void* in, void* out, size_t count, nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm,
                     nupa_ccl_request** request);

/** Gives each rank a part of an array of the root, of different lengths. A collective: all ranks call it in the same
 * order, with the same `type` and `root`. In place: the root's `out` is its block of `in`, that is `in` plus
 * offsets[root] elements.
 * @param in the root: the blocks of all ranks; other ranks: not used
 * @param counts the root: for each rank the elements that it receives; other ranks: not used
 * @param offsets the root: for each rank the position of its block in `in`, in elements; other ranks: not used
 * @param out room for `count` elements
 * @param count elements that this rank receives; the root's counts[rank]
 * @param type type of the elements
 * @param root rank that gives the data
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return As nupa_ccl_gatherv().
 */
int nupa_ccl_scatterv(const void* in, const size_t* counts, const size_t* offsets, void* out, size_t count,
                      nupa_ccl_type type, uint32_t root, nupa_ccl_comm* comm, nupa_ccl_request** request);

/** Collects an array of each rank at all ranks. A collective: all ranks call it in the same order, with the same
 * `count` and `type`. In place: `in` is this rank's block of `out`, that is `out` plus rank * `count` elements.
 * @param in `count` elements that this rank gives
 * @param out room for `count` elements of each rank, in the order of the ranks
 * @param count elements of one rank
 * @param type type of the elements
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type` is unknown, an array is null with `count` greater than 0, or an array is too
 *     large.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_all_gather(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_comm* comm,
                        nupa_ccl_request** request);

/** Collects arrays of different lengths at all ranks. A collective: all ranks call it in the same order, with the same
 * `counts` and `type`. In place: `in` is this rank's block of `out`, that is `out` plus offsets[rank] elements.
 * @param in counts[rank] elements that this rank gives
 * @param out room for the blocks of all ranks, which must not overlap
 * @param counts for each rank the elements that it gives; not null
 * @param offsets for each rank the position of its block in `out`, in elements; not null. Ranks may have different
 *   ones
 * @param type type of the elements
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type` is unknown, a list is null, an array is null and not empty, or an array is too
 *     large.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_all_gatherv(const void* in, void* out, const size_t* counts, const size_t* offsets, nupa_ccl_type type,
                         nupa_ccl_comm* comm, nupa_ccl_request** request);

/** Sends a block from each rank to each rank: block r of rank s becomes block s of rank r. A collective: all ranks call
 * it in the same order, with the same `count` and `type`. In place: `in` is `out`.
 * @param in `count` elements for each rank, in the order of the ranks
 * @param out room for `count` elements of each rank, in the order of the ranks
 * @param count elements of one block
 * @param type type of the elements
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return As nupa_ccl_all_gather().
 */
int nupa_ccl_all_to_all(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_comm* comm,
                        nupa_ccl_request** request);

/** Sends a block of any length from each rank to each rank. A collective: all ranks call it in the same order, with the
 * same `type`. In place: `in` is `out`, and the two lists of counts are equal, as are the two lists of offsets.
 * @param in the blocks for all ranks
 * @param in_counts for each rank the elements that this rank gives to it; that rank's out_counts has the same number.
 *   Not null
 * @param in_offsets for each rank the position of its block in `in`, in elements; not null
 * @param out room for the blocks of all ranks, which must not overlap
 * @param out_counts for each rank the elements that it gives to this rank; not null
 * @param out_offsets for each rank the position of its block in `out`, in elements; not null
 * @param type type of the elements
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return As nupa_ccl_all_gatherv().
 */
int nupa_ccl_all_to_allv(const void* in, const size_t* in_counts, const size_t* in_offsets, void* out,
                         const size_t* out_counts, const size_t* out_offsets, nupa_ccl_type type, nupa_ccl_comm* comm,
                         nupa_ccl_request** request);

/** Reduces the arrays of all ranks, element by element, to one at the root. A collective: all ranks call it in the same
 * order, with the same `count`, `type`, `op` and `root`. In place: the root's `in` is its `out`.
 * @param in `count` elements that this rank gives
 * @param out the root: room for `count` elements; other ranks: not used
 * @param count elements
 * @param type type of the elements
 * @param op operator, which must fit `type`
 * @param root rank that receives the result
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type`, `op` or `root` is out of range, an array that is used is null with `count`
 *     greater than 0, or an array is too large.
 *   - EINVAL also: `op` is not defined for `type`, or has a factor of another type.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_reduce(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op, uint32_t root,
                    nupa_ccl_comm* comm, nupa_ccl_request** request);

/** Reduces the arrays of all ranks, element by element, to one that all ranks get. A collective: all ranks call it in
 * the same order, with the same `count`, `type` and `op`. In place: `in` is `out`.
 * @param in `count` elements that this rank gives
 * @param out room for `count` elements
 * @param count elements
 * @param type type of the elements
 * @param op operator, which must fit `type`
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type` or `op` is unknown, an array that is used is null and not empty, or an array is
 *     too large.
 *   - EINVAL also: `op` is not defined for `type`, or has a factor of another type.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_all_reduce(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op,
                        nupa_ccl_comm* comm, nupa_ccl_request** request);

/** Reduces the arrays of all ranks, element by element, and gives each rank its block of the result. A collective: all
 * ranks call it in the same order, with the same `count`, `type` and `op`. In place: `out` is this rank's block of
 * `in`, that is `in` plus rank * `count` elements.
 * @param in `count` elements for each rank, in the order of the ranks
 * @param out room for `count` elements: block `rank` of the result
 * @param count elements of one block
 * @param type type of the elements
 * @param op operator, which must fit `type`
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type` or `op` is unknown, an array that is used is null and not empty, or an array is
 *     too large.
 *   - EINVAL also: `op` is not defined for `type`, or has a factor of another type.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_reduce_scatter(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op,
                            nupa_ccl_comm* comm, nupa_ccl_request** request);

/** Reduces the arrays of all ranks, element by element, and gives each rank a block of the result, of different
 * lengths. A collective: all ranks call it in the same order, with the same `counts`, `type` and `op`. In place: `out`
 * is this rank's block of `in`.
 * @param in the sum of all `counts` in elements: the blocks of all ranks, one after the other
 * @param out room for counts[rank] elements
 * @param counts for each rank the elements of its block; not null
 * @param type type of the elements
 * @param op operator, which must fit `type`
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` or `counts` is null, `type` or `op` is unknown, an array that is used is null and not empty, or
 *     an array is too large.
 *   - EINVAL also: `op` is not defined for `type`, or has a factor of another type.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_reduce_scatterv(const void* in, void* out, const size_t* counts, nupa_ccl_type type, nupa_ccl_op op,
                             nupa_ccl_comm* comm, nupa_ccl_request** request);

/** Reduces the arrays of ranks 0 to r, element by element, for each rank r. A collective: all ranks call it in the same
 * order, with the same `count`, `type` and `op`. In place: `in` is `out`.
 * @param in `count` elements that this rank gives
 * @param out room for `count` elements
 * @param count elements
 * @param type type of the elements
 * @param op operator, which must fit `type`; not NUPA_CCL_AVERAGE
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type` or `op` is unknown, an array that is used is null and not empty, or an array is
 *     too large.
 *   - EINVAL also: `op` is NUPA_CCL_AVERAGE or not defined for `type`, or has a factor of another type.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_scan(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op, nupa_ccl_comm* comm,
                  nupa_ccl_request** request);

/** Reduces the arrays of ranks 0 to r-1, element by element, for each rank r. A collective: all ranks call it in the
 * same order, with the same `count`, `type` and `op`. In place: `in` is `out`.
 * @param in `count` elements that this rank gives
 * @param out room for `count` elements; at rank 0 it stays as it is and may be null
 * @param count elements
 * @param type type of the elements
 * @param op operator, which must fit `type`; not NUPA_CCL_AVERAGE
 * @param comm communicator
 * @param request null: the call returns when the operation is done. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return As nupa_ccl_scan().
 */
int nupa_ccl_exscan(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op, nupa_ccl_comm* comm,
                    nupa_ccl_request** request);
/** @} */

/** @name Messages
 * Messages between two ranks. They are independent of the order of collectives: each send has one receive, with its
 * rank and tag. Messages between two ranks with one tag are received in the order in which they were sent.
 * @{
 */

/** Rank of a receive: from any rank. */
#define NUPA_CCL_ANY_RANK UINT32_MAX
/** Tag of a receive: any tag. */
#define NUPA_CCL_ANY_TAG (-1)

/** The message that a receive got. */
typedef struct nupa_ccl_status {
  uint32_t rank; /**< rank that sent it */
  int32_t tag;   /**< its tag */
  size_t count;  /**< elements that were sent, also if they are more than there was room for */
} nupa_ccl_status;

/** Sends a message. A send is done when its array may be changed, which may be before the message is received. It may
 * wait for the receive.
 * @param data `count` elements; may be null if that is 0
 * @param count elements
 * @param type type of the elements
 * @param rank rank that receives it, this rank included
 * @param tag tag of the message, 0 to 2^31-1
 * @param comm communicator
 * @param request null: the call returns when the message is done. Otherwise it receives a request for nupa_ccl_wait(),
 *   and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type`, `rank` or `tag` is out of range, `data` is null with `count` greater than 0, or
 *     the array is too large.
 *   - EINVAL also: `request` is given inside a group.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_send(const void* data, size_t count, nupa_ccl_type type, uint32_t rank, int32_t tag, nupa_ccl_comm* comm,
                  nupa_ccl_request** request);

/** Receives a message.
 * @param data room for `count` elements; may be null if that is 0
 * @param count the most elements
 * @param type type of the elements, that of the send
 * @param rank rank that sends it, or NUPA_CCL_ANY_RANK
 * @param tag tag of the message, 0 to 2^31-1, or NUPA_CCL_ANY_TAG
 * @param comm communicator
 * @param status receives rank, tag and count of the message when the call, nupa_ccl_wait() or nupa_ccl_group_end() has
 *   waited for it; may be null
 * @param request null: the call returns when the message is received. Otherwise it receives a request for
 *   nupa_ccl_wait(), and the call returns at once. Inside a group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `comm` is null, `type`, `rank` or `tag` is out of range, `data` is null with `count` greater than 0, or
 *     the array is too large.
 *   - EINVAL also: `request` is given inside a group.
 *   - EMSGSIZE: more than `count` elements were sent; the rest is lost, and the communicator continues.
 *   - EPROTO: with NUPA_CCL_CHECK=1, the send has another type; the communicator continues.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 *   - EAGAIN, ENOMEM: `request` is given, and no thread can be started.
 */
int nupa_ccl_recv(void* data, size_t count, nupa_ccl_type type, uint32_t rank, int32_t tag, nupa_ccl_comm* comm,
                  nupa_ccl_status* status, nupa_ccl_request** request);

/** Sends a message and receives one at the same time. Inside a group both are a part of the group.
 * @param in `in_count` elements to send; may be null if that is 0
 * @param in_count elements to send
 * @param to rank that receives them
 * @param in_tag tag of the message to send, 0 to 2^31-1
 * @param out room for `out_count` elements; may be null if that is 0. It must not overlap `in`
 * @param out_count the most elements to receive
 * @param from rank that sends the other message, or NUPA_CCL_ANY_RANK
 * @param out_tag tag of the message to receive, 0 to 2^31-1, or NUPA_CCL_ANY_TAG
 * @param type type of all elements
 * @param comm communicator
 * @param status receives rank, tag and count of the message that was received; may be null
 * @return As nupa_ccl_recv(), for the first of the two that failed.
 */
int nupa_ccl_sendrecv(const void* in, size_t in_count, uint32_t to, int32_t in_tag, void* out, size_t out_count,
                      uint32_t from, int32_t out_tag, nupa_ccl_type type, nupa_ccl_comm* comm, nupa_ccl_status* status);
/** @} */

/** @name Groups
 * The calls of a thread between nupa_ccl_group_start() and nupa_ccl_group_end() are a group: nupa_ccl_group_end()
 * starts them all before it waits for any. A call inside a group only checks its arguments; nupa_ccl_group_end()
 * returns the errors of the operation. Groups may be nested: the outermost counts.
 * @{
 */

/** Begins a group of this thread.
 * @return 0.
 */
int nupa_ccl_group_start(void);

/** Ends a group of this thread. The end of the outermost group starts all its calls, messages first and then
 * collectives in the order of their calls. The end of an inner group does nothing else.
 * @param request null: the call returns when all are done. Otherwise it receives one request for all of them. It must
 *   be null for an inner group.
 * @return 0 or an errno value:
 *   - EINVAL: no group was begun, or `request` is given for an inner group, which is ended then, too.
 *   - Others: the error of the first of its operations that failed.
 */
int nupa_ccl_group_end(nupa_ccl_request** request);
/** @} */

/** @name Persistent operations
 * Calls that are done repeatedly with the same arguments, like the persistent operations of MPI.
 * @{
 */

/** A group of calls that was kept. */
typedef struct nupa_ccl_persistent nupa_ccl_persistent;

/** Ends the outermost group of this thread, does none of its calls, and keeps them. Their arrays must stay where they
 * are as long as the calls may be started; lists of counts are copied.
 * @param kept receives the calls; not null
 * @return 0, or EINVAL: no group was begun; the group is an inner one, which is ended then; or `kept` is null.
 */
int nupa_ccl_group_keep(nupa_ccl_persistent** kept);

/** Starts the calls that were kept, as nupa_ccl_group_end() does. All ranks start them equally often, in the order of
 * their other calls. They may be started again before they are done. Inside a group they become a part of it.
 * @param kept calls of nupa_ccl_group_keep(); not null
 * @param request null: the call returns when all are done. Otherwise it receives one request for all of them. Inside a
 *   group it must be null.
 * @return 0 or an errno value:
 *   - EINVAL: `kept` is null, or `request` is given inside a group.
 *   - Others: the error of the first of its operations that failed.
 */
int nupa_ccl_start(nupa_ccl_persistent* kept, nupa_ccl_request** request);

/** Frees calls that were kept. All that was started must be done.
 * @param kept calls of nupa_ccl_group_keep(); null: nothing is done
 * @return 0.
 */
int nupa_ccl_persistent_free(nupa_ccl_persistent* kept);
/** @} */

/** @name Algorithms
 * @{
 */

/** Describes the algorithm that an operation would use, and why: "slots: each rank reduces all slots: one barrier". The
 * text is for people. No operation may be under way. On a communicator that has done nothing yet it is a collective:
 * all ranks call it in the same order.
 * @param comm communicator
 * @param operation name of a function without nupa_ccl_: "barrier", "broadcast", "gather", "scatter", "all_gather",
 *   "all_to_all", "reduce", "all_reduce", "reduce_scatter", "scan" or "exscan"; not null
 * @param bytes `count` of such a call times the size of an element
 * @param text receives the text, which ends with 0 and is cut if there is too little room; not null
 * @param room bytes of `text`, not 0
 * @return 0 or an errno value:
 *   - EINVAL: a pointer is null, `operation` is unknown, or `room` is 0.
 *   - ENODEV: a parent process made the communicator.
 *   - ECONNRESET, ETIMEDOUT, ECANCELED, EPROTO and others: the communicator has ended, see nupa_ccl_comm_error().
 */
int nupa_ccl_plan(nupa_ccl_comm* comm, const char* operation, size_t bytes, char* text, size_t room);
/** @} */

/** @name Profiling
 * @{
 */

/** The values of nupa_ccl_event::op beside those of nupa_ccl_builtin_op. */
typedef enum nupa_ccl_event_op {
  NUPA_CCL_NONE = -1,             /**< the operation has no operator */
  NUPA_CCL_PREMULTIPLIED_SUM = 5, /**< an operator of nupa_ccl_op_create_premultiplied_sum() */
  NUPA_CCL_FUNCTION = 255         /**< an operator of nupa_ccl_op_create() */
} nupa_ccl_event_op;

/** An operation or message, for a program's profiler. Texts stay as long as the process. Times are of CLOCK_MONOTONIC,
 * in nanoseconds. */
typedef struct nupa_ccl_event {
  const char* operation; /**< "all_reduce", "all_gatherv", "comm_split", "send" */
  const char* algorithm; /**< at the end: its name, as in nupa_ccl_plan(); null: it has none, or did not get so far */
  uint32_t communicator; /**< number of the communicator in this process, from 1 on */
  uint32_t rank;         /**< this rank */
  uint32_t ranks;        /**< number of ranks */
  uint32_t root;         /**< messages: the other rank; NUPA_CCL_ANY_RANK: no root, or any rank */
  uint64_t number;       /**< from 1 on, of the communicator's observed collectives, or of the process's messages */
  size_t count;          /**< elements of this rank's array */
  size_t bytes;          /**< bytes of this rank's array */
  int type;              /**< nupa_ccl_type */
  int op;                /**< nupa_ccl_builtin_op or nupa_ccl_event_op */
  int error;             /**< at the end: the operation's errno value, 0: none */
  int64_t queued_ns;     /**< when it was called */
  int64_t begin_ns;      /**< when its turn came */
  int64_t end_ns;        /**< at the end: when it was done */
  int64_t waited_ns;     /**< at the end, collectives: how long it waited for other ranks */
} nupa_ccl_event;

/** A program's profiler function. Any thread may call it, several at the same time. It must not call this library.
 * @param event the operation, valid during the call
 * @param context the context of nupa_ccl_set_profiler()
 */
typedef void (*nupa_ccl_profile)(const nupa_ccl_event* event, void* context);

/** Sets the functions that are called before and after each operation and message of all communicators of this process.
 * The calling thread is the one that runs the operation: that of the call or of nupa_ccl_wait(), or one of the
 * library; `end` of a message is called by the thread that waits for it. An operation that is under way still ends
 * with the functions that it began with, so `context` must stay until then.
 *
 * The cost is one load and one branch an operation if no function was ever set. Otherwise it is two readings of the
 * clock, and two more for each time that the operation waits.
 * @param begin called before an operation; may be null
 * @param end called after an operation; may be null
 * @param context any value; both functions get it
 * @return 0, or ENOMEM.
 */
int nupa_ccl_set_profiler(nupa_ccl_profile begin, nupa_ccl_profile end, void* context);
/** @} */

#ifdef __cplusplus
}
#endif
