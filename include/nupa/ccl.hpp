// SPDX-License-Identifier: Apache-2.0
/// @file
/// Collectives among the ranks of a job, in C++20: nupa/ccl.h with types, lifetimes and exceptions. It needs only this
/// header and libnupa_ccl. nupa/ccl.h describes each operation in full, with its in-place rule, order and thread rules.
///
///     nupa::collectives::Communicator world;                 // of `nupa launch`, mpirun, srun, torchrun
///     std::vector<float> gradient = ...;
///     world.all_reduce(gradient, gradient, nupa::collectives::kAverage);
///
/// Arrays are contiguous ranges of an Element type: std::span, std::vector, std::array. Functions throw Error where the
/// function of nupa/ccl.h returns an errno value. They throw std::invalid_argument if the lengths of arrays do not fit;
/// nothing has been started then.
#pragma once
#include <nupa/ccl.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__has_include)
#if __has_include(<stdfloat>)
#include <stdfloat>
#endif
#endif

/// Collectives among the ranks of a job.
namespace nupa::collectives {

/// The bits of an IEEE 754 binary16 number, which C++20 has no type for.
enum class Float16 : uint16_t {};
/// The bits of a bfloat16 number: the upper half of a float.
enum class Bfloat16 : uint16_t {};
/// The bits of an OFP8 number with 4 bits of exponent.
enum class Float8E4m3 : uint8_t {};
/// The bits of an OFP8 number with 5 bits of exponent.
enum class Float8E5m2 : uint8_t {};

/// The exception for an errno value of the library. code() returns the value, and what() the reason.
class Error : public std::system_error {
 public:
  /// @param error errno value
  /// @param text reason, one line
  /// @param rank rank that the communicator has ended because of; kAnyRank: none
  Error(int error, const std::string& text, uint32_t rank)
      : std::system_error(error, std::generic_category(), text), rank_(rank) {}
  /// Returns the rank that the communicator has ended because of.
  /// @return The rank. kAnyRank: none, or the communicator has not ended.
  uint32_t rank() const { return rank_; }

 private:
  uint32_t rank_;
};

/// Parts of the implementation.
namespace detail {

template <class>
constexpr int kTypeOf = -1;
template <class T>
requires(std::integral<T> && !std::same_as<T, bool> &&
         sizeof(T) <= sizeof(int64_t)) constexpr int kTypeOf<T> = (sizeof(T) == 1   ? NUPA_CCL_INT8
                                                                   : sizeof(T) == 2 ? NUPA_CCL_INT16
                                                                   : sizeof(T) == 4 ? NUPA_CCL_INT32
                                                                                    : NUPA_CCL_INT64) +
                                                                  (std::is_unsigned_v<T> ? 1 : 0);
template <>
inline constexpr int kTypeOf<std::byte> = NUPA_CCL_UINT8;
template <>
inline constexpr int kTypeOf<float> = NUPA_CCL_FLOAT32;
template <>
inline constexpr int kTypeOf<double> = NUPA_CCL_FLOAT64;
template <>
inline constexpr int kTypeOf<Float16> = NUPA_CCL_FLOAT16;
template <>
inline constexpr int kTypeOf<Bfloat16> = NUPA_CCL_BFLOAT16;
template <>
inline constexpr int kTypeOf<Float8E4m3> = NUPA_CCL_FLOAT8_E4M3;
template <>
inline constexpr int kTypeOf<Float8E5m2> = NUPA_CCL_FLOAT8_E5M2;
#ifdef __STDCPP_FLOAT16_T__
template <>
inline constexpr int kTypeOf<std::float16_t> = NUPA_CCL_FLOAT16;
#endif
#ifdef __STDCPP_BFLOAT16_T__
template <>
inline constexpr int kTypeOf<std::bfloat16_t> = NUPA_CCL_BFLOAT16;
#endif

inline void check(int error) {
  if (error != 0) throw Error(error, nupa_ccl_error_text(), NUPA_CCL_ANY_RANK);
}
inline void need(bool fits, const char* what) {
  if (!fits) throw std::invalid_argument(what);
}

}  // namespace detail

/// The types that elements of arrays may have: integers of up to 8 bytes except bool, std::byte, float, double,
/// Float16, Bfloat16, Float8E4m3, Float8E5m2, and std::float16_t and std::bfloat16_t where the compiler has them.
template <class T>
concept Element = detail::kTypeOf<std::remove_cv_t<T>>
>= 0;
/// Returns the type of nupa/ccl.h for a C++ type.
/// @tparam T type of elements
/// @return The type.
template <Element T>
constexpr nupa_ccl_type type_of() {
  return static_cast<nupa_ccl_type>(detail::kTypeOf<std::remove_cv_t<T>>);
}

/// An array that is read: a contiguous range of elements.
template <class R>
concept In = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> && Element<std::ranges::range_value_t<R>>;
/// An array that is written: a contiguous range of elements that are not const.
template <class R>
concept Out = In<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;
/// Two arrays whose elements have the same type.
template <class A, class B>
concept SameElements = std::same_as<std::ranges::range_value_t<A>, std::ranges::range_value_t<B>>;

// ---- operators ------------------------------------------------------------------------------------------------------

/// An operator of reductions: one of the constants below, or a MadeOp.
struct Op {
  nupa_ccl_op number;  ///< the operator of nupa/ccl.h
};
inline constexpr Op kSum{NUPA_CCL_SUM};                 ///< sum; integers wrap
inline constexpr Op kProduct{NUPA_CCL_PRODUCT};         ///< product; integers wrap
inline constexpr Op kMin{NUPA_CCL_MIN};                 ///< minimum
inline constexpr Op kMax{NUPA_CCL_MAX};                 ///< maximum
inline constexpr Op kAverage{NUPA_CCL_AVERAGE};         ///< sum divided by the number of ranks
inline constexpr Op kBitAnd{NUPA_CCL_BIT_AND};          ///< bitwise and; integers only
inline constexpr Op kBitOr{NUPA_CCL_BIT_OR};            ///< bitwise or; integers only
inline constexpr Op kBitXor{NUPA_CCL_BIT_XOR};          ///< bitwise exclusive or; integers only
inline constexpr Op kLogicalAnd{NUPA_CCL_LOGICAL_AND};  ///< logical and; integers only
inline constexpr Op kLogicalOr{NUPA_CCL_LOGICAL_OR};    ///< logical or; integers only
inline constexpr Op kLogicalXor{NUPA_CCL_LOGICAL_XOR};  ///< logical exclusive or; integers only

/// An operator that the program makes. It exists as long as this object, which must outlive the operations that use it.
class MadeOp {
 public:
  /// Makes an operator that sums the elements of the ranks, each rank's multiplied by its factor.
  /// @param factor this rank's factor; reductions with the operator have its type
  /// @return The operator.
  /// @throws Error ENOSPC: the process has 65,536 made operators.
  template <Element T>
  static MadeOp premultiplied_sum(T factor) {
    MadeOp made;
    detail::check(nupa_ccl_op_create_premultiplied_sum(&factor, type_of<T>(), &made.op_.number));
    made.exists_ = true;
    return made;
  }
  /// Makes an operator of a function of the program.
  /// @tparam T type of the elements that the operator is used for
  /// @param function called as function(T& result, const T& next) for each element: result = result op next. It must be
  ///   associative and need not commute. Any thread may call it, several at the same time.
  /// @return The operator.
  /// @throws Error ENOSPC: the process has 65,536 made operators.
  template <Element T, class Function>
  static MadeOp function(Function function) {
    MadeOp made;
    auto kept = std::make_shared<Function>(std::move(function));
    const auto call = [](void* result, const void* next, size_t count, int, void* argument) {
      for (size_t i = 0; i < count; ++i)
        (*static_cast<Function*>(argument))(static_cast<T*>(result)[i], static_cast<const T*>(next)[i]);
    };
    detail::check(nupa_ccl_op_create(call, kept.get(), &made.op_.number));
    made.exists_ = true;
    made.kept_ = std::move(kept);
    return made;
  }
  /// Takes over the operator of another object.
  /// @param other the other object, which has no operator afterwards
  MadeOp(MadeOp&& other) noexcept
      : op_(other.op_), exists_(std::exchange(other.exists_, false)), kept_(std::move(other.kept_)) {}
  MadeOp& operator=(MadeOp&&) = delete;
  /// Destroys the operator.
  ~MadeOp() {
    if (exists_) nupa_ccl_op_destroy(op_.number);
  }
  /// @return The operator, for reductions.
  operator Op() const { return op_; }  // NOLINT(google-explicit-constructor): it is one

 private:
  MadeOp() = default;
  Op op_{0};
  bool exists_ = false;
  std::shared_ptr<void> kept_;
};

// ---- memory ---------------------------------------------------------------------------------------------------------

/// An allocator of memory that ranks that share memory read and write directly (nupa_ccl_alloc()).
template <class T>
struct Allocator {
  /// Type of the elements.
  using value_type = T;
  Allocator() = default;
  /// Converts from the allocator of another type. All are equal.
  template <class U>
  Allocator(const Allocator<U>& /*other*/) {}  // NOLINT(google-explicit-constructor): as allocators have it
  /// Allocates whole pages, zeroed.
  /// @param count elements
  /// @return The first element.
  /// @throws std::bad_alloc There is no memory; nupa_ccl_error_text() returns why.
  T* allocate(size_t count) {
    void* const memory = count > SIZE_MAX / sizeof(T) ? nullptr : nupa_ccl_alloc(count * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  /// Frees memory of allocate().
  /// @param memory first element
  void deallocate(T* memory, size_t /*count*/) noexcept { nupa_ccl_free(memory); }
  /// @return True: each allocator can free the memory of each other one.
  bool operator==(const Allocator&) const { return true; }
};
/// A vector in memory that ranks that share memory read and write directly.
template <class T>
using Array = std::vector<T, Allocator<T>>;

// ---- requests and groups -------------------------------------------------------------------------------------------

/// An operation that was started, or a group of them, while the program does something else. The arrays must outlive
/// it. One thread at a time uses it.
class Request {
 public:
  Request() = default;
  /// Takes over the operations of another request.
  /// @param other the other request, which has none afterwards
  Request(Request&& other) noexcept : request_(std::exchange(other.request_, nullptr)) {}
  /// Waits for its operations, whose errors are lost, and takes over those of another request.
  /// @param other the other request, which has none afterwards
  /// @return This request.
  Request& operator=(Request&& other) noexcept {
    if (this == &other) return *this;
    end();
    request_ = std::exchange(other.request_, nullptr);
    return *this;
  }
  /// Waits for its operations, since their arrays are in use until then. Their errors are lost: call wait() before.
  ~Request() { end(); }

  /// @return True if there are operations to wait for: they were started, and wait() has not been called.
  explicit operator bool() const { return request_ != nullptr; }
  /// Tests whether the operations are done. It does not block; wait() still returns their errors.
  /// @return True if they are done, or if there are none.
  bool is_done() const {
    int done = 1;
    if (request_ != nullptr) detail::check(nupa_ccl_test(request_, &done));
    return done != 0;
  }
  /// Waits until the operations are done.
  /// @throws Error the first operation that failed, as nupa_ccl_wait()
  void wait() {
    if (request_ != nullptr) detail::check(nupa_ccl_wait(std::exchange(request_, nullptr)));
  }
  /// Returns where a function of nupa/ccl.h puts its request. It waits for the operations that this request has before;
  /// their errors are lost.
  /// @return The place, valid as long as this object.
  nupa_ccl_request** place() {
    end();
    return &request_;
  }

 private:
  void end() {
    if (request_ != nullptr) nupa_ccl_wait(std::exchange(request_, nullptr));
  }
  nupa_ccl_request* request_ = nullptr;
};

/// Calls that are done repeatedly with the same arguments; Group::keep() makes it. Their arrays must stay where they
/// are. All operations must be done before it is destroyed.
class Persistent {
 public:
  /// Takes over calls of nupa_ccl_group_keep().
  /// @param kept the calls
  explicit Persistent(nupa_ccl_persistent* kept) : kept_(kept) {}
  /// Takes over the calls of another object.
  /// @param other the other object, which has none afterwards
  Persistent(Persistent&& other) noexcept : kept_(std::exchange(other.kept_, nullptr)) {}
  Persistent& operator=(Persistent&&) = delete;
  /// Frees the calls.
  ~Persistent() { nupa_ccl_persistent_free(kept_); }
  /// Does the calls, and waits until they are done. All ranks do them equally often.
  /// @throws Error as nupa_ccl_start()
  void run() { detail::check(nupa_ccl_start(kept_, nullptr)); }
  /// Starts the calls. All ranks do them equally often.
  /// @return The request to wait for.
  /// @throws Error as nupa_ccl_start()
  Request start() {
    Request request;
    detail::check(nupa_ccl_start(kept_, request.place()));
    return request;
  }

 private:
  nupa_ccl_persistent* kept_;
};

/// Calls of this thread that are started together. It begins with the constructor and ends with run(), start() or
/// keep(). If none of them is called, the destructor drops the calls. Groups may be nested: the outermost counts.
class Group {
 public:
  /// Begins a group of this thread.
  Group() { detail::check(nupa_ccl_group_start()); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  /// Drops the calls, unless run(), start() or keep() was called. The calls of an inner group stay in the outer one.
  ~Group() {
    nupa_ccl_persistent* dropped = nullptr;
    if (is_open_ && nupa_ccl_group_keep(&dropped) == 0) nupa_ccl_persistent_free(dropped);
  }
  /// Does the calls, and waits until they are done.
  /// @throws Error the first operation that failed, as nupa_ccl_group_end()
  void run() {
    is_open_ = false;
    detail::check(nupa_ccl_group_end(nullptr));
  }
  /// Starts the calls.
  /// @return The request to wait for.
  /// @throws Error as nupa_ccl_group_end()
  Request start() {
    is_open_ = false;
    Request request;
    detail::check(nupa_ccl_group_end(request.place()));
    return request;
  }
  /// Keeps the calls and does none of them.
  /// @return The calls, to be done repeatedly.
  /// @throws Error as nupa_ccl_group_keep()
  Persistent keep() {
    is_open_ = false;
    nupa_ccl_persistent* kept = nullptr;
    detail::check(nupa_ccl_group_keep(&kept));
    return Persistent(kept);
  }

 private:
  bool is_open_ = true;
};

/// The part of an array that belongs to each rank, in elements. Both lists have an entry for each rank.
struct Parts {
  std::span<const size_t> counts;   ///< length of each part
  std::span<const size_t> offsets;  ///< position of each part in the array
};

constexpr uint32_t kAnyRank = NUPA_CCL_ANY_RANK;  ///< receives: from any rank
constexpr int32_t kAnyTag = NUPA_CCL_ANY_TAG;     ///< receives: any tag
/// The message that a receive got.
using Status = nupa_ccl_status;

// ---- communicators --------------------------------------------------------------------------------------------------

/// A communicator: one rank's handle on a group of ranks. Each function is the one of the same name in nupa/ccl.h.
///
/// `request`: null, and the call returns when the operation is done; otherwise it starts the operation, and the request
/// is to be waited for. Inside a Group it must be null. Any thread may call any function.
class Communicator {
 public:
  /// @name Making and ending
  /// @{

  /// Makes a communicator of the ranks of the job that this process was started in, which it contacts for this. All
  /// ranks call it; it returns when all have met.
  /// @throws Error as nupa_ccl_comm_init()
  Communicator() { detail::check(nupa_ccl_comm_init(&comm_)); }
  /// Makes a communicator of the ranks that have a unique id. All ranks call it; it returns when all have met.
  /// @param ranks number of ranks
  /// @param id the unique id, of nupa_ccl_get_unique_id()
  /// @param rank this rank
  /// @throws Error as nupa_ccl_comm_init_rank()
  Communicator(uint32_t ranks, const nupa_ccl_unique_id& id, uint32_t rank) {
    detail::check(nupa_ccl_comm_init_rank(&comm_, ranks, &id, rank));
  }
  /// Makes a communicator of the ranks that meet at a place. All ranks call it; it returns when all have met.
  /// @param ranks number of ranks
  /// @param where `tcp://HOST:PORT`, `tcp://HOST:PORT?key=TEXT` or `file:///PATH`
  /// @param rank this rank
  /// @throws Error as nupa_ccl_comm_init_from()
  Communicator(uint32_t ranks, const std::string& where, uint32_t rank) {
    detail::check(nupa_ccl_comm_init_from(&comm_, ranks, where.c_str(), rank));
  }
  /// Takes over a communicator of nupa/ccl.h.
  /// @param comm the communicator; null: none
  explicit Communicator(nupa_ccl_comm* comm) : comm_(comm) {}
  /// Takes over the communicator of another object.
  /// @param other the other object, which has none afterwards
  Communicator(Communicator&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
  /// Swaps the communicators of two objects.
  /// @param other the other object, which gets this one's communicator
  /// @return This object.
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  /// Frees the communicator. A collective, unless it has ended: all ranks have to come here. Errors are lost.
  ~Communicator() { nupa_ccl_comm_destroy(comm_); }

  /// @return False: this object has no communicator, as after split() with a negative color.
  explicit operator bool() const { return comm_ != nullptr; }
  /// @return The communicator, for functions of nupa/ccl.h. It belongs to this object.
  nupa_ccl_comm* handle() const { return comm_; }
  /// @return This rank, 0 to size() - 1.
  /// @throws Error EINVAL: this object has no communicator.
  uint32_t rank() const {
    uint32_t rank = 0;
    check(nupa_ccl_comm_rank(comm_, &rank));
    return rank;
  }
  /// @return The number of ranks.
  /// @throws Error EINVAL: this object has no communicator.
  uint32_t size() const {
    uint32_t ranks = 0;
    check(nupa_ccl_comm_size(comm_, &ranks));
    return ranks;
  }
  /// Returns whether and why the communicator has ended.
  /// @return 0, or the errno value that it has ended with.
  /// @throws Error EINVAL: this object has no communicator.
  int error() const {
    int error = 0;
    check(nupa_ccl_comm_error(comm_, &error, nullptr));
    return error;
  }
  /// Ends the communicator for all ranks (nupa_ccl_comm_abort()).
  /// @throws Error EINVAL: this object has no communicator.
  void abort() { check(nupa_ccl_comm_abort(comm_)); }
  /// Divides the communicator (nupa_ccl_comm_split()). A collective: all ranks call it in the same order.
  /// @param color which of the new communicators this rank joins; negative: none
  /// @param key order of this rank in the new communicator
  /// @return The new communicator; an object without one if `color` is negative.
  /// @throws Error as nupa_ccl_comm_split()
  Communicator split(int64_t color, int64_t key) { return made(nupa_ccl_comm_split, color, key); }
  /// Makes another communicator of the same ranks (nupa_ccl_comm_dup()). A collective: all ranks call it in the same
  /// order.
  /// @return The new communicator.
  /// @throws Error as nupa_ccl_comm_split()
  Communicator dup() { return made(nupa_ccl_comm_dup); }
  /// Makes a communicator of the ranks that are left after others have died (nupa_ccl_comm_shrink()). All of them call
  /// it.
  /// @return The new communicator.
  /// @throws Error as nupa_ccl_comm_shrink()
  Communicator shrink() { return made(nupa_ccl_comm_shrink); }
  /// @}

  /// @name Operations
  /// @{

  /// Waits until all ranks have called it. A collective: all ranks call it in the same order.
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_barrier()
  void barrier(Request* request = nullptr) { check(nupa_ccl_barrier(comm_, place(request))); }

  /// Copies an array of the root to all ranks. A collective: all ranks call it in the same order.
  /// @param data the root: the array to give; other ranks: room for it, of the same length
  /// @param root rank that gives the data
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_broadcast()
  template <Out R>
  void broadcast(R&& data, uint32_t root, Request* request = nullptr) {
    check(nupa_ccl_broadcast(std::ranges::data(data), std::ranges::size(data), of<R>(), root, comm_, place(request)));
  }

  /// Collects an array of each rank at the root. A collective: all ranks call it in the same order. In place: the
  /// root's `in` is its part of `out`.
  /// @param in array of this rank, of equal length on all ranks
  /// @param out the root: at least size() times as long as `in`; other ranks: not used, may be empty
  /// @param root rank that receives the data
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_gather()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void gather(const I& in, O&& out, uint32_t root, Request* request = nullptr) {
    if (rank() == root) need(std::ranges::size(out) >= std::ranges::size(in) * size(), "gather: out is too short");
    check(nupa_ccl_gather(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), root, comm_,
                          place(request)));
  }
  /// Collects arrays of different lengths at the root. A collective: all ranks call it in the same order. In place: the
  /// root's `in` is its part of `out`.
  /// @param in array of this rank
  /// @param out the root: room for all parts; other ranks: not used, may be empty
  /// @param parts the root: the part of `out` for each rank; other ranks: not used, may be empty
  /// @param root rank that receives the data
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_gatherv()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void gather(const I& in, O&& out, const Parts& parts, uint32_t root, Request* request = nullptr) {
    if (rank() == root) need_parts(parts, std::ranges::size(out), "gather: parts do not fit");
    check(nupa_ccl_gatherv(std::ranges::data(in), std::ranges::size(in), std::ranges::data(out), parts.counts.data(),
                           parts.offsets.data(), of<I>(), root, comm_, place(request)));
  }

  /// Gives each rank its part of an array of the root. A collective: all ranks call it in the same order. In place: the
  /// root's `out` is its part of `in`.
  /// @param in the root: at least size() times as long as `out`; other ranks: not used, may be empty
  /// @param out room for the part of this rank, of equal length on all ranks
  /// @param root rank that gives the data
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_scatter()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void scatter(const I& in, O&& out, uint32_t root, Request* request = nullptr) {
    if (rank() == root) need(std::ranges::size(in) >= std::ranges::size(out) * size(), "scatter: in is too short");
    check(nupa_ccl_scatter(std::ranges::data(in), std::ranges::data(out), std::ranges::size(out), of<I>(), root, comm_,
                           place(request)));
  }
  /// Gives each rank a part of an array of the root, of different lengths. A collective: all ranks call it in the same
  /// order. In place: the root's `out` is its part of `in`.
  /// @param in the root: all parts; other ranks: not used, may be empty
  /// @param parts the root: the part of `in` for each rank; other ranks: not used, may be empty
  /// @param out room for the part of this rank, exactly of its length
  /// @param root rank that gives the data
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_scatterv()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void scatter(const I& in, const Parts& parts, O&& out, uint32_t root, Request* request = nullptr) {
    if (rank() == root) need_parts(parts, std::ranges::size(in), "scatter: parts do not fit");
    check(nupa_ccl_scatterv(std::ranges::data(in), parts.counts.data(), parts.offsets.data(), std::ranges::data(out),
                            std::ranges::size(out), of<I>(), root, comm_, place(request)));
  }

  /// Collects an array of each rank at all ranks. A collective: all ranks call it in the same order. In place: `in` is
  /// this rank's part of `out`.
  /// @param in array of this rank, of equal length on all ranks
  /// @param out at least size() times as long as `in`
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_all_gather()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void all_gather(const I& in, O&& out, Request* request = nullptr) {
    need(std::ranges::size(out) >= std::ranges::size(in) * size(), "all_gather: out is too short");
    check(nupa_ccl_all_gather(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), comm_,
                              place(request)));
  }
  /// Collects arrays of different lengths at all ranks. A collective: all ranks call it in the same order. In place:
  /// `in` is this rank's part of `out`.
  /// @param in array of this rank, at least parts.counts[rank()] long
  /// @param out room for all parts
  /// @param parts the part of `out` for each rank; all ranks have the same counts
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_all_gatherv()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void all_gather(const I& in, O&& out, const Parts& parts, Request* request = nullptr) {
    need_parts(parts, std::ranges::size(out), "all_gather: parts do not fit");
    need(std::ranges::size(in) >= parts.counts[rank()], "all_gather: in is too short");
    check(nupa_ccl_all_gatherv(std::ranges::data(in), std::ranges::data(out), parts.counts.data(), parts.offsets.data(),
                               of<I>(), comm_, place(request)));
  }

  /// Sends a block from each rank to each rank. A collective: all ranks call it in the same order. In place: `in` is
  /// `out`.
  /// @param in size() blocks of equal length, one for each rank
  /// @param out at least as long as `in`; receives a block of each rank
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_all_to_all()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void all_to_all(const I& in, O&& out, Request* request = nullptr) {
    const size_t ranks = size();
    need(std::ranges::size(in) % ranks == 0 && std::ranges::size(out) >= std::ranges::size(in),
         "all_to_all: arrays are not a block for each rank");
    check(nupa_ccl_all_to_all(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in) / ranks, of<I>(),
                              comm_, place(request)));
  }
  /// Sends a block of any length from each rank to each rank. A collective: all ranks call it in the same order. In
  /// place: `in` is `out`, and the parts of both are equal.
  /// @param in the blocks for all ranks
  /// @param in_parts the block of `in` for each rank
  /// @param out room for the blocks of all ranks
  /// @param out_parts the block of `out` for each rank
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_all_to_allv()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void all_to_all(const I& in, const Parts& in_parts, O&& out, const Parts& out_parts, Request* request = nullptr) {
    need_parts(in_parts, std::ranges::size(in), "all_to_all: parts of in do not fit");
    need_parts(out_parts, std::ranges::size(out), "all_to_all: parts of out do not fit");
    check(nupa_ccl_all_to_allv(std::ranges::data(in), in_parts.counts.data(), in_parts.offsets.data(),
                               std::ranges::data(out), out_parts.counts.data(), out_parts.offsets.data(), of<I>(),
                               comm_, place(request)));
  }

  /// Reduces the arrays of all ranks to one at the root. A collective: all ranks call it in the same order. In place:
  /// the root's `in` is its `out`.
  /// @param in array of this rank, of equal length on all ranks
  /// @param out the root: at least as long as `in`; other ranks: not used, may be empty
  /// @param op operator
  /// @param root rank that receives the result
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_reduce()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void reduce(const I& in, O&& out, Op op, uint32_t root, Request* request = nullptr) {
    if (rank() == root) need(std::ranges::size(out) >= std::ranges::size(in), "reduce: out is too short");
    check(nupa_ccl_reduce(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), op.number,
                          root, comm_, place(request)));
  }
  /// Reduces the arrays of all ranks to one that all ranks get. A collective: all ranks call it in the same order. In
  /// place: `in` is `out`.
  /// @param in array of this rank, of equal length on all ranks
  /// @param out at least as long as `in`
  /// @param op operator
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_all_reduce()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void all_reduce(const I& in, O&& out, Op op = kSum, Request* request = nullptr) {
    need(std::ranges::size(out) >= std::ranges::size(in), "all_reduce: out is too short");
    check(nupa_ccl_all_reduce(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), op.number,
                              comm_, place(request)));
  }
  /// Reduces the arrays of all ranks, and gives each rank its block of the result. A collective: all ranks call it in
  /// the same order. In place: `out` is this rank's block of `in`.
  /// @param in a block for each rank, at least size() times as long as `out`
  /// @param out room for the block of this rank, of equal length on all ranks
  /// @param op operator
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_reduce_scatter()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void reduce_scatter(const I& in, O&& out, Op op = kSum, Request* request = nullptr) {
    need(std::ranges::size(in) >= std::ranges::size(out) * size(), "reduce_scatter: in is too short");
    check(nupa_ccl_reduce_scatter(std::ranges::data(in), std::ranges::data(out), std::ranges::size(out), of<I>(),
                                  op.number, comm_, place(request)));
  }
  /// Reduces the arrays of all ranks, and gives each rank a block of the result, of different lengths. A collective:
  /// all ranks call it in the same order. In place: `out` is this rank's block of `in`.
  /// @param in the blocks for all ranks, one after the other
  /// @param out room for the block of this rank, at least counts[rank()] long
  /// @param counts length of the block of each rank; the same on all ranks
  /// @param op operator
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_reduce_scatterv()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void reduce_scatter(const I& in, O&& out, std::span<const size_t> counts, Op op = kSum, Request* request = nullptr) {
    size_t all = 0;
    for (const size_t count : counts) all += count;
    need(counts.size() >= size() && std::ranges::size(in) >= all && std::ranges::size(out) >= counts[rank()],
         "reduce_scatter: counts do not fit");
    check(nupa_ccl_reduce_scatterv(std::ranges::data(in), std::ranges::data(out), counts.data(), of<I>(), op.number,
                                   comm_, place(request)));
  }
  /// Reduces the arrays of ranks 0 to r, for each rank r. A collective: all ranks call it in the same order. In place:
  /// `in` is `out`.
  /// @param in array of this rank, of equal length on all ranks
  /// @param out at least as long as `in`
  /// @param op operator, not kAverage
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_scan()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void scan(const I& in, O&& out, Op op = kSum, Request* request = nullptr) {
    need(std::ranges::size(out) >= std::ranges::size(in), "scan: out is too short");
    check(nupa_ccl_scan(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), op.number, comm_,
                        place(request)));
  }
  /// Reduces the arrays of ranks 0 to r-1, for each rank r. A collective: all ranks call it in the same order. In
  /// place: `in` is `out`.
  /// @param in array of this rank, of equal length on all ranks
  /// @param out at least as long as `in`; at rank 0 it stays as it is
  /// @param op operator, not kAverage
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_exscan()
  /// @throws std::invalid_argument lengths do not fit
  template <In I, Out O>
  requires SameElements<I, O>
  void exscan(const I& in, O&& out, Op op = kSum, Request* request = nullptr) {
    need(std::ranges::size(out) >= std::ranges::size(in), "exscan: out is too short");
    check(nupa_ccl_exscan(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), op.number,
                          comm_, place(request)));
  }
  /// @}

  /// @name Messages
  /// @{

  /// Sends a message.
  /// @param data the elements to send
  /// @param to rank that receives them
  /// @param tag tag of the message, 0 to 2^31-1
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_send()
  template <In I>
  void send(const I& data, uint32_t to, int32_t tag = 0, Request* request = nullptr) {
    check(nupa_ccl_send(std::ranges::data(data), std::ranges::size(data), of<I>(), to, tag, comm_, place(request)));
  }
  /// Receives a message.
  /// @param data room for the message
  /// @param from rank that sends it, or kAnyRank
  /// @param tag tag of the message, or kAnyTag
  /// @param status null, or receives rank, tag and count of the message when this call or the request's wait() has
  ///   waited for it
  /// @param request null, or receives the request to wait for
  /// @throws Error as nupa_ccl_recv()
  template <Out O>
  void recv(O&& data, uint32_t from = kAnyRank, int32_t tag = kAnyTag, Status* status = nullptr,
            Request* request = nullptr) {
    check(nupa_ccl_recv(std::ranges::data(data), std::ranges::size(data), of<O>(), from, tag, comm_, status,
                        place(request)));
  }
  /// Sends a message and receives one at the same time.
  /// @param in the elements to send
  /// @param to rank that receives them
  /// @param out room for the message to receive; it must not overlap `in`
  /// @param from rank that sends it, or kAnyRank
  /// @param in_tag tag of the message to send
  /// @param out_tag tag of the message to receive, or kAnyTag
  /// @param status null, or receives rank, tag and count of the message that was received
  /// @throws Error as nupa_ccl_sendrecv()
  template <In I, Out O>
  requires SameElements<I, O>
  void sendrecv(const I& in, uint32_t to, O&& out, uint32_t from, int32_t in_tag = 0, int32_t out_tag = kAnyTag,
                Status* status = nullptr) {
    check(nupa_ccl_sendrecv(std::ranges::data(in), std::ranges::size(in), to, in_tag, std::ranges::data(out),
                            std::ranges::size(out), from, out_tag, of<I>(), comm_, status));
  }
  /// @}

 private:
  template <class R>
  static constexpr nupa_ccl_type of() {
    return type_of<std::ranges::range_value_t<R>>();
  }
  static nupa_ccl_request** place(Request* request) { return request == nullptr ? nullptr : request->place(); }
  static void need(bool fits, const char* what) { detail::need(fits, what); }
  void need_parts(const Parts& parts, size_t elements, const char* what) const {
    const size_t ranks = size();
    need(parts.counts.size() >= ranks && parts.offsets.size() >= ranks, what);
    for (size_t rank = 0; rank < ranks; ++rank)
      need(parts.offsets[rank] <= elements && parts.counts[rank] <= elements - parts.offsets[rank], what);
  }
  void check(int error) const {
    if (error == 0) return;
    const std::string text = nupa_ccl_error_text();
    int ended = 0;
    uint32_t rank = kAnyRank;
    if (comm_ != nullptr) nupa_ccl_comm_error(comm_, &ended, &rank);
    throw Error(error, text, ended == 0 ? kAnyRank : rank);
  }
  template <class Make, class... Arguments>
  Communicator made(Make make, Arguments... arguments) {
    nupa_ccl_comm* other = nullptr;
    check(make(comm_, arguments..., &other));
    return Communicator(other);
  }

  nupa_ccl_comm* comm_ = nullptr;
};

}  // namespace nupa::collectives
