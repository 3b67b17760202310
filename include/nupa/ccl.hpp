/// Collectives among the ranks of a job, in C++20: nupa/ccl.h with types, lifetimes and exceptions. Nothing but this
/// header beside libnupa_ccl. What a call does, what arrays in place are and which thread may call is said there.
///
///     nupa::collectives::Communicator world;                 // of `nupa launch`, mpirun, srun, torchrun
///     std::vector<float> gradient = ...;
///     world.all_reduce(gradient, gradient, nupa::collectives::kAverage);
///
/// Arrays are contiguous ranges of one of the types below: std::span, std::vector, std::array. Every function of a
/// communicator throws Error where that of nupa/ccl.h returns an errno value, and std::invalid_argument where the
/// lengths of arrays do not fit; then nothing has been begun.
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

namespace nupa::collectives {

// Numbers that C++20 has no type for, as their bits.
enum class Float16 : uint16_t {};
enum class Bfloat16 : uint16_t {};
enum class Float8E4m3 : uint8_t {};
enum class Float8E5m2 : uint8_t {};

/// What a function of the library has failed by.
class Error : public std::system_error {
 public:
  Error(int error, const std::string& text, uint32_t rank)
      : std::system_error(error, std::generic_category(), text), rank_(rank) {}
  /// Because of whom the communicator has ended; UINT32_MAX: nobody, or it has not.
  uint32_t rank() const { return rank_; }

 private:
  uint32_t rank_;
};

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

/// What elements of arrays may be.
template <class T>
concept Element = detail::kTypeOf<std::remove_cv_t<T>>
>= 0;
template <Element T>
constexpr nupa_ccl_type type_of() {
  return static_cast<nupa_ccl_type>(detail::kTypeOf<std::remove_cv_t<T>>);
}

/// An array that is read, or written.
template <class R>
concept In = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> && Element<std::ranges::range_value_t<R>>;
template <class R>
concept Out = In<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;
template <class A, class B>
concept SameElements = std::same_as<std::ranges::range_value_t<A>, std::ranges::range_value_t<B>>;

// ---- operators ------------------------------------------------------------------------------------------------------

struct Op {
  nupa_ccl_op number;
};
inline constexpr Op kSum{NUPA_CCL_SUM};
inline constexpr Op kProduct{NUPA_CCL_PRODUCT};
inline constexpr Op kMin{NUPA_CCL_MIN};
inline constexpr Op kMax{NUPA_CCL_MAX};
inline constexpr Op kAverage{NUPA_CCL_AVERAGE};
inline constexpr Op kBitAnd{NUPA_CCL_BIT_AND};
inline constexpr Op kBitOr{NUPA_CCL_BIT_OR};
inline constexpr Op kBitXor{NUPA_CCL_BIT_XOR};
inline constexpr Op kLogicalAnd{NUPA_CCL_LOGICAL_AND};
inline constexpr Op kLogicalOr{NUPA_CCL_LOGICAL_OR};
inline constexpr Op kLogicalXor{NUPA_CCL_LOGICAL_XOR};

/// An operator of the program's own, as long as this lives.
class MadeOp {
 public:
  /// A sum of what each rank multiplies with its own factor.
  template <Element T>
  static MadeOp premultiplied_sum(T factor) {
    MadeOp made;
    detail::check(nupa_ccl_op_create_premultiplied_sum(&factor, type_of<T>(), &made.op_.number));
    made.exists_ = true;
    return made;
  }
  /// `function(T& result, const T& next)` is called for each element: result = result op next. Associative; any thread.
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
  MadeOp(MadeOp&& other) noexcept
      : op_(other.op_), exists_(std::exchange(other.exists_, false)), kept_(std::move(other.kept_)) {}
  MadeOp& operator=(MadeOp&&) = delete;
  ~MadeOp() {
    if (exists_) nupa_ccl_op_destroy(op_.number);
  }
  operator Op() const { return op_; }  // NOLINT(google-explicit-constructor): it is one

 private:
  MadeOp() = default;
  Op op_{0};
  bool exists_ = false;
  std::shared_ptr<void> kept_;
};

// ---- memory ---------------------------------------------------------------------------------------------------------

/// Memory that ranks that share memory take from where it lies. std::bad_alloc: there is none.
template <class T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>& /*other*/) {}  // NOLINT(google-explicit-constructor): as allocators have it
  T* allocate(size_t count) {
    void* const memory = count > SIZE_MAX / sizeof(T) ? nullptr : nupa_ccl_alloc(count * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t /*count*/) noexcept { nupa_ccl_free(memory); }
  bool operator==(const Allocator&) const { return true; }
};
template <class T>
using Array = std::vector<T, Allocator<T>>;

// ---- what is begun --------------------------------------------------------------------------------------------------

/// Calls that are done while the program does something else. Arrays have to outlive it.
class Request {
 public:
  Request() = default;
  Request(Request&& other) noexcept : request_(std::exchange(other.request_, nullptr)) {}
  Request& operator=(Request&& other) noexcept {
    if (this == &other) return *this;
    end();
    request_ = std::exchange(other.request_, nullptr);
    return *this;
  }
  /// Waits, for the arrays are in use until then; errors are lost.
  ~Request() { end(); }

  /// There is nothing to be waited for where nothing was begun, or it has been.
  explicit operator bool() const { return request_ != nullptr; }
  bool is_done() const {
    int done = 1;
    if (request_ != nullptr) detail::check(nupa_ccl_test(request_, &done));
    return done != 0;
  }
  void wait() {
    if (request_ != nullptr) detail::check(nupa_ccl_wait(std::exchange(request_, nullptr)));
  }
  /// For calls of nupa/ccl.h: where a request is to be put. What was there is waited for.
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

/// Calls that are done again and again; their arrays have to stay. See Group::keep().
class Persistent {
 public:
  explicit Persistent(nupa_ccl_persistent* kept) : kept_(kept) {}
  Persistent(Persistent&& other) noexcept : kept_(std::exchange(other.kept_, nullptr)) {}
  Persistent& operator=(Persistent&&) = delete;
  ~Persistent() { nupa_ccl_persistent_free(kept_); }
  void run() { detail::check(nupa_ccl_start(kept_, nullptr)); }
  Request start() {
    Request request;
    detail::check(nupa_ccl_start(kept_, request.place()));
    return request;
  }

 private:
  nupa_ccl_persistent* kept_;
};

/// Calls of this thread that are one, from here to one of the functions below. Without one of them nothing is done.
class Group {
 public:
  Group() { detail::check(nupa_ccl_group_start()); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    nupa_ccl_persistent* dropped = nullptr;
    if (is_open_ && nupa_ccl_group_keep(&dropped) == 0) nupa_ccl_persistent_free(dropped);
  }
  void run() {
    is_open_ = false;
    detail::check(nupa_ccl_group_end(nullptr));
  }
  Request start() {
    is_open_ = false;
    Request request;
    detail::check(nupa_ccl_group_end(request.place()));
    return request;
  }
  Persistent keep() {
    is_open_ = false;
    nupa_ccl_persistent* kept = nullptr;
    detail::check(nupa_ccl_group_keep(&kept));
    return Persistent(kept);
  }

 private:
  bool is_open_ = true;
};

/// Which part of an array is each rank's, in elements.
struct Parts {
  std::span<const size_t> counts;
  std::span<const size_t> offsets;
};

constexpr uint32_t kAnyRank = NUPA_CCL_ANY_RANK;
constexpr int32_t kAnyTag = NUPA_CCL_ANY_TAG;
using Status = nupa_ccl_status;

// ---- communicators --------------------------------------------------------------------------------------------------

/// A group of ranks; each function as the one of the same name in nupa/ccl.h. `request`: null, and the call is done
/// when it returns; else it has begun.
class Communicator {
 public:
  /// The ranks of the job that this process was started in.
  Communicator() { detail::check(nupa_ccl_comm_init(&comm_)); }
  Communicator(uint32_t ranks, const nupa_ccl_unique_id& id, uint32_t rank) {
    detail::check(nupa_ccl_comm_init_rank(&comm_, ranks, &id, rank));
  }
  /// `where`: tcp://HOST:PORT or file:///PATH.
  Communicator(uint32_t ranks, const std::string& where, uint32_t rank) {
    detail::check(nupa_ccl_comm_init_from(&comm_, ranks, where.c_str(), rank));
  }
  /// Takes what nupa/ccl.h has made.
  explicit Communicator(nupa_ccl_comm* comm) : comm_(comm) {}
  Communicator(Communicator&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  /// A collective, unless it has ended.
  ~Communicator() { nupa_ccl_comm_destroy(comm_); }

  /// Of one that is none: see split().
  explicit operator bool() const { return comm_ != nullptr; }
  nupa_ccl_comm* handle() const { return comm_; }
  uint32_t rank() const {
    uint32_t rank = 0;
    check(nupa_ccl_comm_rank(comm_, &rank));
    return rank;
  }
  uint32_t size() const {
    uint32_t ranks = 0;
    check(nupa_ccl_comm_size(comm_, &ranks));
    return ranks;
  }
  /// 0, or why it has ended.
  int error() const {
    int error = 0;
    check(nupa_ccl_comm_error(comm_, &error, nullptr));
    return error;
  }
  void abort() { check(nupa_ccl_comm_abort(comm_)); }
  /// With a negative color: one that is none.
  Communicator split(int64_t color, int64_t key) { return made(nupa_ccl_comm_split, color, key); }
  Communicator dup() { return made(nupa_ccl_comm_dup); }
  Communicator shrink() { return made(nupa_ccl_comm_shrink); }

  void barrier(Request* request = nullptr) { check(nupa_ccl_barrier(comm_, place(request))); }

  template <Out R>
  void broadcast(R&& data, uint32_t root, Request* request = nullptr) {
    check(nupa_ccl_broadcast(std::ranges::data(data), std::ranges::size(data), of<R>(), root, comm_, place(request)));
  }

  /// `out`: the root's; of the others it may be empty.
  template <In I, Out O>
  requires SameElements<I, O>
  void gather(const I& in, O&& out, uint32_t root, Request* request = nullptr) {
    if (rank() == root) need(std::ranges::size(out) >= std::ranges::size(in) * size(), "gather: out is too short");
    check(nupa_ccl_gather(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), root, comm_,
                          place(request)));
  }
  /// `parts`: the root's.
  template <In I, Out O>
  requires SameElements<I, O>
  void gather(const I& in, O&& out, const Parts& parts, uint32_t root, Request* request = nullptr) {
    if (rank() == root) need_parts(parts, std::ranges::size(out), "gather: parts do not fit");
    check(nupa_ccl_gatherv(std::ranges::data(in), std::ranges::size(in), std::ranges::data(out), parts.counts.data(),
                           parts.offsets.data(), of<I>(), root, comm_, place(request)));
  }

  /// `in`: the root's; of the others it may be empty.
  template <In I, Out O>
  requires SameElements<I, O>
  void scatter(const I& in, O&& out, uint32_t root, Request* request = nullptr) {
    if (rank() == root) need(std::ranges::size(in) >= std::ranges::size(out) * size(), "scatter: in is too short");
    check(nupa_ccl_scatter(std::ranges::data(in), std::ranges::data(out), std::ranges::size(out), of<I>(), root, comm_,
                           place(request)));
  }
  /// `parts`: the root's.
  template <In I, Out O>
  requires SameElements<I, O>
  void scatter(const I& in, const Parts& parts, O&& out, uint32_t root, Request* request = nullptr) {
    if (rank() == root) need_parts(parts, std::ranges::size(in), "scatter: parts do not fit");
    check(nupa_ccl_scatterv(std::ranges::data(in), parts.counts.data(), parts.offsets.data(), std::ranges::data(out),
                            std::ranges::size(out), of<I>(), root, comm_, place(request)));
  }

  template <In I, Out O>
  requires SameElements<I, O>
  void all_gather(const I& in, O&& out, Request* request = nullptr) {
    need(std::ranges::size(out) >= std::ranges::size(in) * size(), "all_gather: out is too short");
    check(nupa_ccl_all_gather(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), comm_,
                              place(request)));
  }
  template <In I, Out O>
  requires SameElements<I, O>
  void all_gather(const I& in, O&& out, const Parts& parts, Request* request = nullptr) {
    need_parts(parts, std::ranges::size(out), "all_gather: parts do not fit");
    need(std::ranges::size(in) >= parts.counts[rank()], "all_gather: in is too short");
    check(nupa_ccl_all_gatherv(std::ranges::data(in), std::ranges::data(out), parts.counts.data(), parts.offsets.data(),
                               of<I>(), comm_, place(request)));
  }

  /// Arrays have a block for each rank.
  template <In I, Out O>
  requires SameElements<I, O>
  void all_to_all(const I& in, O&& out, Request* request = nullptr) {
    const size_t ranks = size();
    need(std::ranges::size(in) % ranks == 0 && std::ranges::size(out) >= std::ranges::size(in),
         "all_to_all: arrays are not a block for each rank");
    check(nupa_ccl_all_to_all(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in) / ranks, of<I>(),
                              comm_, place(request)));
  }
  template <In I, Out O>
  requires SameElements<I, O>
  void all_to_all(const I& in, const Parts& in_parts, O&& out, const Parts& out_parts, Request* request = nullptr) {
    need_parts(in_parts, std::ranges::size(in), "all_to_all: parts of in do not fit");
    need_parts(out_parts, std::ranges::size(out), "all_to_all: parts of out do not fit");
    check(nupa_ccl_all_to_allv(std::ranges::data(in), in_parts.counts.data(), in_parts.offsets.data(),
                               std::ranges::data(out), out_parts.counts.data(), out_parts.offsets.data(), of<I>(),
                               comm_, place(request)));
  }

  /// `out`: the root's; of the others it may be empty.
  template <In I, Out O>
  requires SameElements<I, O>
  void reduce(const I& in, O&& out, Op op, uint32_t root, Request* request = nullptr) {
    if (rank() == root) need(std::ranges::size(out) >= std::ranges::size(in), "reduce: out is too short");
    check(nupa_ccl_reduce(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), op.number,
                          root, comm_, place(request)));
  }
  template <In I, Out O>
  requires SameElements<I, O>
  void all_reduce(const I& in, O&& out, Op op = kSum, Request* request = nullptr) {
    need(std::ranges::size(out) >= std::ranges::size(in), "all_reduce: out is too short");
    check(nupa_ccl_all_reduce(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), op.number,
                              comm_, place(request)));
  }
  /// `in` has a block for each rank, of which `out` gets this one's.
  template <In I, Out O>
  requires SameElements<I, O>
  void reduce_scatter(const I& in, O&& out, Op op = kSum, Request* request = nullptr) {
    need(std::ranges::size(in) >= std::ranges::size(out) * size(), "reduce_scatter: in is too short");
    check(nupa_ccl_reduce_scatter(std::ranges::data(in), std::ranges::data(out), std::ranges::size(out), of<I>(),
                                  op.number, comm_, place(request)));
  }
  /// Blocks one after the other, so long for each rank.
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
  template <In I, Out O>
  requires SameElements<I, O>
  void scan(const I& in, O&& out, Op op = kSum, Request* request = nullptr) {
    need(std::ranges::size(out) >= std::ranges::size(in), "scan: out is too short");
    check(nupa_ccl_scan(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), op.number, comm_,
                        place(request)));
  }
  template <In I, Out O>
  requires SameElements<I, O>
  void exscan(const I& in, O&& out, Op op = kSum, Request* request = nullptr) {
    need(std::ranges::size(out) >= std::ranges::size(in), "exscan: out is too short");
    check(nupa_ccl_exscan(std::ranges::data(in), std::ranges::data(out), std::ranges::size(in), of<I>(), op.number,
                          comm_, place(request)));
  }

  template <In I>
  void send(const I& data, uint32_t to, int32_t tag = 0, Request* request = nullptr) {
    check(nupa_ccl_send(std::ranges::data(data), std::ranges::size(data), of<I>(), to, tag, comm_, place(request)));
  }
  /// `status`: written when it is done.
  template <Out O>
  void recv(O&& data, uint32_t from = kAnyRank, int32_t tag = kAnyTag, Status* status = nullptr,
            Request* request = nullptr) {
    check(nupa_ccl_recv(std::ranges::data(data), std::ranges::size(data), of<O>(), from, tag, comm_, status,
                        place(request)));
  }
  template <In I, Out O>
  requires SameElements<I, O>
  void sendrecv(const I& in, uint32_t to, O&& out, uint32_t from, int32_t in_tag = 0, int32_t out_tag = kAnyTag,
                Status* status = nullptr) {
    check(nupa_ccl_sendrecv(std::ranges::data(in), std::ranges::size(in), to, in_tag, std::ranges::data(out),
                            std::ranges::size(out), from, out_tag, of<I>(), comm_, status));
  }

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
