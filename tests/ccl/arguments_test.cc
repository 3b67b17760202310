// SPDX-License-Identifier: Apache-2.0
/// Which arguments each function refuses, and which unusual ones it accepts.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "job.h"

namespace nupa::ccl {
namespace {

constexpr nupa_ccl_type kFloat = NUPA_CCL_FLOAT32;
constexpr nupa_ccl_op kSum = NUPA_CCL_SUM;

/// The arguments that operations have in common.
struct Arguments {
  nupa_ccl_comm* comm;
  void* data;
  size_t count = 1;
  nupa_ccl_type type = kFloat;
  nupa_ccl_op op = kSum;
  uint32_t root = 0;
  const size_t* counts;
  const size_t* offsets;
  nupa_ccl_request** request = nullptr;
};

/// An operation that is called with one array for all of its array arguments.
struct Function {
  const char* name;
  int (*call)(const Arguments&);
  bool has_count = true;
  bool has_root = false;
  bool has_op = false;
  bool has_lists = false;
};

const Function kFunctions[] = {
    {"broadcast",
     [](const Arguments& a) { return nupa_ccl_broadcast(a.data, a.count, a.type, a.root, a.comm, a.request); }, true,
     true},
    {"gather",
     [](const Arguments& a) { return nupa_ccl_gather(a.data, a.data, a.count, a.type, a.root, a.comm, a.request); },
     true, true},
    {"gatherv",
     [](const Arguments& a) {
       return nupa_ccl_gatherv(a.data, a.count, a.data, a.counts, a.offsets, a.type, a.root, a.comm, a.request);
     },
     true, true, false, true},
    {"scatter",
     [](const Arguments& a) { return nupa_ccl_scatter(a.data, a.data, a.count, a.type, a.root, a.comm, a.request); },
     true, true},
    {"scatterv",
     [](const Arguments& a) {
       return nupa_ccl_scatterv(a.data, a.counts, a.offsets, a.data, a.count, a.type, a.root, a.comm, a.request);
     },
     true, true, false, true},
    {"all_gather",
     [](const Arguments& a) { return nupa_ccl_all_gather(a.data, a.data, a.count, a.type, a.comm, a.request); }},
    {"all_gatherv",
     [](const Arguments& a) {
       return nupa_ccl_all_gatherv(a.data, a.data, a.counts, a.offsets, a.type, a.comm, a.request);
     },
     false, false, false, true},
    {"all_to_all",
     [](const Arguments& a) { return nupa_ccl_all_to_all(a.data, a.data, a.count, a.type, a.comm, a.request); }},
    {"all_to_allv",
     [](const Arguments& a) {
       return nupa_ccl_all_to_allv(a.data, a.counts, a.offsets, a.data, a.counts, a.offsets, a.type, a.comm, a.request);
     },
     false, false, false, true},
    {"reduce",
     [](const Arguments& a) {
       return nupa_ccl_reduce(a.data, a.data, a.count, a.type, a.op, a.root, a.comm, a.request);
     },
     true, true, true},
    {"all_reduce",
     [](const Arguments& a) { return nupa_ccl_all_reduce(a.data, a.data, a.count, a.type, a.op, a.comm, a.request); },
     true, false, true},
    {"reduce_scatter",
     [](const Arguments& a) {
       return nupa_ccl_reduce_scatter(a.data, a.data, a.count, a.type, a.op, a.comm, a.request);
     },
     true, false, true},
    {"reduce_scatterv",
     [](const Arguments& a) {
       return nupa_ccl_reduce_scatterv(a.data, a.data, a.counts, a.type, a.op, a.comm, a.request);
     },
     false, false, true, false},
    {"scan", [](const Arguments& a) { return nupa_ccl_scan(a.data, a.data, a.count, a.type, a.op, a.comm, a.request); },
     true, false, true},
    {"exscan",
     [](const Arguments& a) { return nupa_ccl_exscan(a.data, a.data, a.count, a.type, a.op, a.comm, a.request); }, true,
     false, true},
};

/// Makes a call in a group that is dropped: the arguments are checked, and no operation begins.
template <class Call>
int check_only(Rank& rank, const Call& call) {
  rank.expect_ok(nupa_ccl_group_start(), "group_start");
  const int error = call();
  nupa_ccl_persistent* dropped = nullptr;
  rank.expect_ok(nupa_ccl_group_keep(&dropped), "group_keep");
  rank.expect_ok(nupa_ccl_persistent_free(dropped), "free");
  return error;
}

/// Checks the errors of calls that begin no operation.
class Refusals {
 public:
  explicit Refusals(Rank& rank) : rank_(rank) {}
  void refuses(int error, const std::string& what) const {
    rank_.expect(error == EINVAL && *nupa_ccl_error_text() != 0, what + " was not refused");
  }
  void takes(int error, const std::string& what) const { rank_.expect_ok(error, what); }

 private:
  Rank& rank_;
};

void check_common(Rank& rank, const Function& function) {
  const Refusals expects(rank);
  const std::string name = function.name;
  float array[16] = {};
  const size_t counts[] = {1, 1};
  const size_t offsets[] = {0, 1};
  // Each rank is the root of its own call: roots have more arguments to check.
  const Arguments right{rank.world(), array, 1, kFloat, kSum, rank.rank(), counts, offsets};
  const auto with = [&](const auto& change) {
    Arguments other = right;
    change(other);
    return check_only(rank, [&] { return function.call(other); });
  };
  expects.takes(with([](Arguments&) {}), name);
  expects.refuses(function.call([&] {
    Arguments other = right;
    other.comm = nullptr;
    return other;
  }()),
                  name + " of no communicator");
  for (const int type : {14, 15})
    expects.refuses(with([&](Arguments& a) { a.type = static_cast<nupa_ccl_type>(type); }), name + " of no type");
  if (function.has_root) {
    expects.refuses(with([&](Arguments& a) { a.root = rank.ranks(); }), name + " with a root that is none");
    expects.refuses(with([&](Arguments& a) { a.root = UINT32_MAX; }), name + " with a root far from any");
  }
  if (function.has_op) {
    for (const nupa_ccl_op op :
         {nupa_ccl_op{5}, nupa_ccl_op{12}, nupa_ccl_op{0xffff}, nupa_ccl_op{0x10000}, UINT32_MAX})
      expects.refuses(with([&](Arguments& a) { a.op = op; }), name + " by operator " + std::to_string(op));
    for (nupa_ccl_op op = NUPA_CCL_BIT_AND; op <= NUPA_CCL_LOGICAL_XOR; ++op) {
      expects.refuses(with([&](Arguments& a) { a.op = op; }), name + " by bits of floating point");
      expects.takes(with([&](Arguments& a) {
                      a.op = op;
                      a.type = NUPA_CCL_UINT64;
                    }),
                    name + " by bits");
    }
    const int error = with([](Arguments& a) { a.op = NUPA_CCL_AVERAGE; });
    if (name == "scan" || name == "exscan")
      expects.refuses(error, name + " of averages");
    else
      expects.takes(error, name + " of averages");
  }
  if (function.has_count) {
    const size_t most = SIZE_MAX / 2 / sizeof(float) / rank.ranks();
    expects.takes(with([&](Arguments& a) { a.count = most; }), name + " of as much as can be");
    expects.refuses(with([&](Arguments& a) { a.count = most + 1; }), name + " of one more than can be");
    expects.refuses(with([](Arguments& a) { a.count = SIZE_MAX; }), name + " of more than can be");
  }
  if (name != "all_to_allv") expects.refuses(with([](Arguments& a) { a.data = nullptr; }), name + " of no array");
  if (!function.has_lists && name != "reduce_scatterv") {
    expects.takes(with([](Arguments& a) {
                    a.data = nullptr;
                    a.count = 0;
                  }),
                  name + " of nothing");
  }
  if (function.has_lists || name == "reduce_scatterv") {
    expects.refuses(with([](Arguments& a) { a.counts = nullptr; }), name + " without counts");
    const size_t most = SIZE_MAX / 4 / sizeof(float);
    const size_t as_many[] = {0, most};
    const size_t too_many[] = {0, most + 1};
    const size_t none[] = {0, 0};
    // Without offsets, one rank's limit is exceeded by the sum of two counts.
    expects.takes(with([&](Arguments& a) { a.counts = as_many; }), name + " of a long part");
    expects.refuses(with([&](Arguments& a) { a.counts = too_many; }), name + " of too long a part");
    if (function.has_lists) {
      expects.refuses(with([](Arguments& a) { a.offsets = nullptr; }), name + " without offsets");
      expects.takes(with([&](Arguments& a) {
                      a.counts = none;
                      a.offsets = as_many;
                    }),
                    name + " of a part far away");
      expects.refuses(with([&](Arguments& a) {
                        a.counts = none;
                        a.offsets = too_many;
                      }),
                      name + " of a part too far away");
    }
  }
  nupa_ccl_request* request = nullptr;
  expects.refuses(with([&](Arguments& a) { a.request = &request; }), name + " with a request in a group");
}

TEST(CclArguments, Operations_WrongArguments_AreRefused) {
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      for (const Function& function : kFunctions) check_common(rank, function);
                      const Refusals expects(rank);
                      expects.refuses(nupa_ccl_barrier(nullptr, nullptr), "barrier of none");
                      rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "nothing of this was begun");
                    }),
            all_well(2));
}

/// Outside a group, the smallest operations have code of their own that checks arguments.
TEST(CclArguments, SmallOperations_WrongArguments_AreRefused) {
  EXPECT_EQ(
      run_job(
          2,
          [](Rank& rank) {
            const Refusals expects(rank);
            float value[2] = {1, 1};
            nupa_ccl_comm* const world = rank.world();
            // That code is used after the first operation.
            rank.expect_ok(nupa_ccl_barrier(world, nullptr), "barrier");
            for (const int number : {14, 15}) {
              const auto type = static_cast<nupa_ccl_type>(number);
              expects.refuses(nupa_ccl_all_reduce(value, value, 1, type, kSum, world, nullptr), "all_reduce");
              expects.refuses(nupa_ccl_all_gather(value, value, 1, type, world, nullptr), "all_gather");
              expects.refuses(nupa_ccl_broadcast(value, 1, type, 0, world, nullptr), "broadcast");
            }
            expects.refuses(nupa_ccl_all_reduce(value, value, 1, kFloat, kSum, nullptr, nullptr), "no communicator");
            expects.refuses(nupa_ccl_all_gather(value, value, 1, kFloat, nullptr, nullptr), "no communicator");
            expects.refuses(nupa_ccl_broadcast(value, 1, kFloat, 0, nullptr, nullptr), "no communicator");
            expects.refuses(nupa_ccl_broadcast(value, 1, kFloat, 2, world, nullptr), "no such root");
            expects.refuses(nupa_ccl_broadcast(nullptr, 1, kFloat, 0, world, nullptr), "no array");
            expects.refuses(nupa_ccl_all_reduce(value, nullptr, 1, kFloat, kSum, world, nullptr), "no result");
            expects.refuses(nupa_ccl_all_reduce(nullptr, value, 1, kFloat, kSum, world, nullptr), "no array");
            expects.refuses(nupa_ccl_all_gather(value, nullptr, 1, kFloat, world, nullptr), "no result");
            for (const nupa_ccl_op op : {nupa_ccl_op{5}, nupa_ccl_op{6}, nupa_ccl_op{12}})
              expects.refuses(nupa_ccl_all_reduce(value, value, 1, kFloat, op, world, nullptr), "operator");
            // The length in bytes wraps around to 0.
            expects.refuses(nupa_ccl_all_reduce(value, value, SIZE_MAX / 4 + 1, kFloat, kSum, world, nullptr), "wraps");
            expects.refuses(nupa_ccl_broadcast(value, SIZE_MAX / 4 + 1, kFloat, 0, world, nullptr), "wraps");
            rank.expect(value[0] == 1 && value[1] == 1, "nothing was written");
            rank.expect_ok(nupa_ccl_barrier(world, nullptr), "nothing of this was begun");
          }),
      all_well(2));
}

TEST(CclArguments, RootOnlyArguments_NullOnOtherRanks_AreAccepted) {
  EXPECT_EQ(
      run_job(2,
              [](Rank& rank) {
                const bool is_root = rank.rank() == 1;
                const size_t counts[] = {2, 1};
                const size_t offsets[] = {1, 0};
                const int32_t own[] = {static_cast<int32_t>(rank.rank()), 7};
                int32_t all[3] = {};
                int32_t part[2] = {-1, -1};
                nupa_ccl_comm* const world = rank.world();
                const size_t mine = counts[rank.rank()];
                rank.expect_ok(nupa_ccl_gatherv(own, mine, is_root ? all : nullptr, is_root ? counts : nullptr,
                                                is_root ? offsets : nullptr, NUPA_CCL_INT32, 1, world, nullptr),
                               "gatherv");
                rank.expect(!is_root || (all[0] == 1 && all[1] == 0 && all[2] == 7), "what was gathered");
                rank.expect_ok(
                    nupa_ccl_scatterv(is_root ? all : nullptr, is_root ? counts : nullptr, is_root ? offsets : nullptr,
                                      part, mine, NUPA_CCL_INT32, 1, world, nullptr),
                    "scatterv");
                rank.expect(part[0] == own[0] && part[1] == (is_root ? -1 : 7), "what was scattered");
                rank.expect_ok(nupa_ccl_gather(own, is_root ? all : nullptr, 1, NUPA_CCL_INT32, 1, world, nullptr),
                               "gather");
                rank.expect_ok(nupa_ccl_scatter(is_root ? all : nullptr, part, 1, NUPA_CCL_INT32, 1, world, nullptr),
                               "scatter");
                rank.expect_ok(
                    nupa_ccl_reduce(own, is_root ? all : nullptr, 1, NUPA_CCL_INT32, kSum, 1, world, nullptr),
                    "reduce");
                rank.expect(!is_root || all[0] == 1, "the sum");
                rank.expect_ok(
                    nupa_ccl_exscan(own, rank.rank() == 0 ? nullptr : part, 1, NUPA_CCL_INT32, kSum, world, nullptr),
                    "exscan");
                const Refusals expects(rank);
                if (is_root) {
                  expects.refuses(nupa_ccl_gather(own, nullptr, 1, NUPA_CCL_INT32, 1, world, nullptr), "gather");
                  expects.refuses(nupa_ccl_scatter(nullptr, part, 1, NUPA_CCL_INT32, 1, world, nullptr), "scatter");
                  expects.refuses(nupa_ccl_reduce(own, nullptr, 1, NUPA_CCL_INT32, kSum, 1, world, nullptr), "reduce");
                  expects.refuses(nupa_ccl_exscan(own, nullptr, 1, NUPA_CCL_INT32, kSum, world, nullptr), "exscan");
                }
              }),
      all_well(2));
}

TEST(CclArguments, Lists_ArrayThatIsNull_IsNamed) {
  EXPECT_EQ(
      run_job(
          2,
          [](Rank& rank) {
            nupa_ccl_comm* const world = rank.world();
            const size_t counts[] = {0, 1};
            const size_t none[] = {0, 0};
            const size_t offsets[] = {0, 0};
            float array[2] = {};
            const uint32_t root = rank.rank();
            const auto names = [&](const std::string& array_name, const auto& call) {
              rank.expect(check_only(rank, call) == EINVAL, "a null array was not refused");
              const std::string text = nupa_ccl_error_text();
              rank.expect(text == array_name + " is null, but its count is not 0", text);
            };
            const auto takes = [&](const auto& call) { rank.expect_ok(check_only(rank, call), "nothing is asked"); };
            const auto gatherv = [&](const float* in, float* out, const size_t* of) {
              return [=] { return nupa_ccl_gatherv(in, 1, out, of, offsets, kFloat, root, world, nullptr); };
            };
            names("in", gatherv(nullptr, array, counts));
            names("out", gatherv(array, nullptr, counts));
            takes(gatherv(array, nullptr, none));
            const auto scatterv = [&](const float* in, float* out, const size_t* of) {
              return [=] { return nupa_ccl_scatterv(in, of, offsets, out, 1, kFloat, root, world, nullptr); };
            };
            names("in", scatterv(nullptr, array, counts));
            names("out", scatterv(array, nullptr, counts));
            takes(scatterv(nullptr, array, none));
            const auto all_gatherv = [&](float* out, const size_t* of) {
              return [=, &array] { return nupa_ccl_all_gatherv(array, out, of, offsets, kFloat, world, nullptr); };
            };
            names("out", all_gatherv(nullptr, counts));
            takes(all_gatherv(nullptr, none));
            const auto all_to_allv = [&](const float* in, const size_t* ins, float* out, const size_t* outs) {
              return [=] { return nupa_ccl_all_to_allv(in, ins, offsets, out, outs, offsets, kFloat, world, nullptr); };
            };
            names("in", all_to_allv(nullptr, counts, array, counts));
            names("out", all_to_allv(array, counts, nullptr, counts));
            takes(all_to_allv(nullptr, none, array, counts));
            takes(all_to_allv(array, counts, nullptr, none));
            const auto reduce_scatterv = [&](const float* in, const size_t* of) {
              return [=, &array] { return nupa_ccl_reduce_scatterv(in, array, of, kFloat, kSum, world, nullptr); };
            };
            names("in", reduce_scatterv(nullptr, counts));
            takes(reduce_scatterv(nullptr, none));
            names("data", [&] { return nupa_ccl_broadcast(nullptr, 1, kFloat, 0, world, nullptr); });
            names("data", [&] { return nupa_ccl_send(nullptr, 1, kFloat, 0, 0, world, nullptr); });
            names("out", [&] { return nupa_ccl_sendrecv(array, 1, 0, 0, nullptr, 1, 0, 0, kFloat, world, nullptr); });
          }),
      all_well(2));
}

TEST(CclArguments, GroupEnd_OfAnInnerGroupWithARequest_IsRefused) {
  EXPECT_EQ(run_job(1,
                    [](Rank& rank) {
                      const Refusals expects(rank);
                      nupa_ccl_request* request = nullptr;
                      rank.expect_ok(nupa_ccl_group_start(), "group_start");
                      rank.expect_ok(nupa_ccl_group_start(), "the inner one");
                      rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
                      expects.refuses(nupa_ccl_group_end(&request), "a request of the inner one");
                      rank.expect(request == nullptr, "there is none");
                      rank.expect_ok(nupa_ccl_group_start(), "another one");
                      rank.expect_ok(nupa_ccl_group_end(nullptr), "which takes no request");
                      rank.expect_ok(nupa_ccl_group_end(&request), "the outer one");
                      rank.expect(request != nullptr, "a request for all");
                      rank.expect_ok(nupa_ccl_wait(request), "wait");
                      expects.refuses(nupa_ccl_group_end(nullptr), "all have ended");
                    }),
            all_well(1));
}

TEST(CclArguments, Messages_WrongArguments_AreRefused) {
  EXPECT_EQ(
      run_job(
          2,
          [](Rank& rank) {
            const Refusals expects(rank);
            nupa_ccl_comm* const world = rank.world();
            float value = 1;
            const auto sends = [&](const void* data, size_t count, int type, uint32_t to, int32_t tag,
                                   nupa_ccl_comm* comm) {
              return check_only(rank, [&] {
                return nupa_ccl_send(data, count, static_cast<nupa_ccl_type>(type), to, tag, comm, nullptr);
              });
            };
            const auto receives = [&](void* data, size_t count, int type, uint32_t from, int32_t tag,
                                      nupa_ccl_comm* comm) {
              return check_only(rank, [&] {
                return nupa_ccl_recv(data, count, static_cast<nupa_ccl_type>(type), from, tag, comm, nullptr, nullptr);
              });
            };
            const size_t most = SIZE_MAX / 2 / sizeof value;
            const int largest = INT32_MAX;
            expects.takes(sends(&value, most, kFloat, 1, largest, world), "send");
            expects.takes(receives(&value, most, kFloat, 1, largest, world), "recv");
            expects.takes(sends(nullptr, 0, kFloat, 0, 0, world), "send of nothing");
            expects.takes(receives(nullptr, 0, kFloat, NUPA_CCL_ANY_RANK, NUPA_CCL_ANY_TAG, world), "recv of nothing");
            expects.refuses(sends(&value, most + 1, kFloat, 1, 0, world), "send too large");
            expects.refuses(receives(&value, most + 1, kFloat, 1, 0, world), "recv too large");
            expects.refuses(sends(nullptr, 1, kFloat, 1, 0, world), "send of no array");
            expects.refuses(receives(nullptr, 1, kFloat, 1, 0, world), "recv of no array");
            for (const int type : {14, 15}) {
              expects.refuses(sends(&value, 1, type, 1, 0, world), "send of no type");
              expects.refuses(receives(&value, 1, type, 1, 0, world), "recv of no type");
            }
            for (const uint32_t other : {2u, UINT32_MAX})
              expects.refuses(sends(&value, 1, kFloat, other, 0, world), "send to nobody");
            expects.refuses(receives(&value, 1, kFloat, 2, 0, world), "recv from nobody");
            expects.refuses(sends(&value, 1, kFloat, 1, -1, world), "send with any tag");
            expects.refuses(receives(&value, 1, kFloat, 1, -2, world), "recv with a tag that is none");
            expects.refuses(sends(&value, 1, kFloat, 1, 0, nullptr), "send by none");
            expects.refuses(receives(&value, 1, kFloat, 1, 0, nullptr), "recv by none");
            nupa_ccl_request* request = nullptr;
            expects.refuses(check_only(rank, [&] { return nupa_ccl_send(&value, 1, kFloat, 1, 0, world, &request); }),
                            "send with a request in a group");
            expects.refuses(
                check_only(rank, [&] { return nupa_ccl_recv(&value, 1, kFloat, 1, 0, world, nullptr, &request); }),
                "recv with a request in a group");
            // If one of the two is wrong, neither begins.
            const uint32_t other = 1 - rank.rank();
            expects.refuses(nupa_ccl_sendrecv(&value, 1, other, 0, nullptr, 1, other, 0, kFloat, world, nullptr),
                            "sendrecv to nowhere");
            expects.refuses(nupa_ccl_sendrecv(&value, 1, 2, 0, &value, 1, other, 0, kFloat, world, nullptr),
                            "sendrecv with nobody");
            nupa_ccl_status status{};
            const float sent = static_cast<float>(rank.rank()) + 10;
            rank.expect_ok(nupa_ccl_sendrecv(&sent, 1, other, 1, &value, 1, NUPA_CCL_ANY_RANK, NUPA_CCL_ANY_TAG, kFloat,
                                             world, &status),
                           "sendrecv");
            rank.expect(value == static_cast<float>(other) + 10 && status.tag == 1, "what came is not what was sent");
          }),
      all_well(2));
}

TEST(CclArguments, Operators_WrongArguments_AreRefused) {
  EXPECT_EQ(
      run_job(1,
              [](Rank& rank) {
                const Refusals expects(rank);
                const auto function = [](void*, const void*, size_t, int, void*) {};
                nupa_ccl_op op = 0;
                const float factor = 3;
                expects.refuses(nupa_ccl_op_create(nullptr, nullptr, &op), "no function");
                expects.refuses(nupa_ccl_op_create(function, nullptr, nullptr), "no place");
                expects.refuses(nupa_ccl_op_create_premultiplied_sum(nullptr, kFloat, &op), "no factor");
                expects.refuses(nupa_ccl_op_create_premultiplied_sum(&factor, kFloat, nullptr), "no place");
                for (const int type : {14, 15})
                  expects.refuses(nupa_ccl_op_create_premultiplied_sum(&factor, static_cast<nupa_ccl_type>(type), &op),
                                  "no type");
                for (const nupa_ccl_op none : {nupa_ccl_op{0}, nupa_ccl_op{5}, nupa_ccl_op{0x10000}, UINT32_MAX})
                  expects.refuses(nupa_ccl_op_destroy(none), "no operator");
                rank.expect_ok(nupa_ccl_op_create_premultiplied_sum(&factor, kFloat, &op), "op");
                nupa_ccl_op second = 0;
                rank.expect_ok(nupa_ccl_op_create(function, nullptr, &second), "op");
                rank.expect(op != second && op >= 12, "each has a number of its own");
                float value = 2;
                double other = 2;
                expects.refuses(nupa_ccl_all_reduce(&other, &other, 1, NUPA_CCL_FLOAT64, op, rank.world(), nullptr),
                                "a factor of another type");
                rank.expect_ok(nupa_ccl_all_reduce(&value, &value, 1, kFloat, op, rank.world(), nullptr), "sum");
                rank.expect(value == 6, "the factor");
                rank.expect_ok(nupa_ccl_op_destroy(op), "destroy");
                expects.refuses(nupa_ccl_op_destroy(op), "an operator that is gone");
                expects.refuses(nupa_ccl_all_reduce(&value, &value, 1, kFloat, op, rank.world(), nullptr),
                                "an operator that is gone");
                rank.expect_ok(nupa_ccl_op_destroy(second), "the other one is still there");
              }),
      all_well(1));
}

TEST(CclArguments, Operators_DestroyedOnes_TakeNoPlace) {
  EXPECT_EQ(run_job(1,
                    [](Rank& rank) {
                      constexpr uint32_t kMost = 65'536;
                      for (uint32_t i = 0; i <= kMost; ++i) {
                        nupa_ccl_op op = 0;
                        rank.expect_ok(nupa_ccl_op_create([](void*, const void*, size_t, int, void*) {}, nullptr, &op),
                                       "create");
                        rank.expect_ok(nupa_ccl_op_destroy(op), "destroy");
                      }
                    }),
            all_well(1));
}

TEST(CclArguments, CommunicatorsRequestsAndMemory_WrongArguments_AreRefused) {
  EXPECT_EQ(run_job(1,
                    [](Rank& rank) {
                      const Refusals expects(rank);
                      nupa_ccl_comm* const world = rank.world();
                      nupa_ccl_comm* made = nullptr;
                      nupa_ccl_unique_id id = rank.id();
                      expects.refuses(nupa_ccl_get_unique_id(nullptr), "no place for an id");
                      expects.refuses(nupa_ccl_comm_init_rank(nullptr, 1, &id, 0), "no place");
                      expects.refuses(nupa_ccl_comm_init_rank(&made, 1, nullptr, 0), "no id");
                      expects.refuses(nupa_ccl_comm_init_rank(&made, 1, &id, 1), "no such rank");
                      expects.refuses(nupa_ccl_comm_init_rank(&made, 0, &id, 0), "no ranks");
                      id.bytes[0] ^= 1;
                      expects.refuses(nupa_ccl_comm_init_rank(&made, 1, &id, 0), "no id of the library");
                      expects.refuses(nupa_ccl_comm_init_from(nullptr, 1, "tcp://127.0.0.1:1", 0), "no place");
                      expects.refuses(nupa_ccl_comm_init_from(&made, 1, nullptr, 0), "nowhere");
                      expects.refuses(nupa_ccl_comm_init_from(&made, 1, "tcp://127.0.0.1:1", 1), "no such rank");
                      expects.refuses(nupa_ccl_comm_init_from(&made, 1, "here", 0), "no place");
                      expects.refuses(nupa_ccl_comm_init(nullptr), "no place");
                      expects.refuses(nupa_ccl_comm_split(nullptr, 0, 0, &made), "split of none");
                      expects.refuses(nupa_ccl_comm_split(world, 0, 0, nullptr), "split to nowhere");
                      expects.refuses(nupa_ccl_comm_dup(nullptr, &made), "dup of none");
                      expects.refuses(nupa_ccl_comm_dup(world, nullptr), "dup to nowhere");
                      expects.refuses(nupa_ccl_comm_shrink(nullptr, &made), "shrink of none");
                      expects.refuses(nupa_ccl_comm_shrink(world, nullptr), "shrink to nowhere");
                      expects.refuses(nupa_ccl_comm_abort(nullptr), "abort of none");
                      uint32_t number = 77;
                      int error = 77;
                      expects.refuses(nupa_ccl_comm_rank(nullptr, &number), "rank of none");
                      expects.refuses(nupa_ccl_comm_rank(world, nullptr), "rank to nowhere");
                      expects.refuses(nupa_ccl_comm_size(nullptr, &number), "size of none");
                      expects.refuses(nupa_ccl_comm_size(world, nullptr), "size to nowhere");
                      expects.refuses(nupa_ccl_comm_error(nullptr, &error, &number), "error of none");
                      rank.expect(made == nullptr && number == 77 && error == 77, "nothing was written");
                      rank.expect_ok(nupa_ccl_comm_error(world, nullptr, nullptr), "error to nowhere");
                      rank.expect_ok(nupa_ccl_comm_error(world, &error, &number), "error");
                      rank.expect(error == 0 && number == UINT32_MAX, "there is none");
                      rank.expect_ok(nupa_ccl_comm_destroy(nullptr), "destroy of none");

                      expects.refuses(nupa_ccl_wait(nullptr), "wait for nothing");
                      nupa_ccl_request* request = nullptr;
                      expects.refuses(nupa_ccl_test(nullptr, &error), "test of nothing");
                      rank.expect_ok(nupa_ccl_barrier(world, &request), "barrier");
                      expects.refuses(nupa_ccl_test(request, nullptr), "test to nowhere");
                      rank.expect_ok(nupa_ccl_wait(request), "wait");
                      expects.refuses(nupa_ccl_group_end(nullptr), "the end of no group");
                      expects.refuses(nupa_ccl_group_end(&request), "the end of no group");
                      rank.expect_ok(nupa_ccl_group_start(), "group_start");
                      expects.refuses(nupa_ccl_group_keep(nullptr), "a group to nowhere");
                      expects.refuses(nupa_ccl_group_end(nullptr), "and it has ended");

                      rank.expect_ok(nupa_ccl_free(nullptr), "free of nothing");
                      expects.refuses(nupa_ccl_free(&error), "free of what was not allocated");
                      auto* const memory = static_cast<char*>(nupa_ccl_alloc(1));
                      rank.expect(memory != nullptr && memory[0] == 0, "alloc");
                      expects.refuses(nupa_ccl_free(memory + 1), "free from its middle");
                      rank.expect_ok(nupa_ccl_free(memory), "free");
                      expects.refuses(nupa_ccl_free(memory), "free again");
                      rank.expect(nupa_ccl_alloc(SIZE_MAX) == nullptr && *nupa_ccl_error_text() != 0, "all there is");
                    }),
            all_well(1));
}

/// nupa_ccl_error_text() is of this thread's last call that failed.
TEST(CclArguments, ErrorText_AfterACallThatSucceeds_IsOfTheLastFailure) {
  EXPECT_EQ(run_job(1,
                    [](Rank& rank) {
                      rank.expect(*nupa_ccl_error_text() == 0, "nothing has failed");
                      nupa_ccl_wait(nullptr);
                      rank.expect(std::strcmp(nupa_ccl_error_text(), "request is null") == 0, nupa_ccl_error_text());
                      rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
                      rank.expect(std::strcmp(nupa_ccl_error_text(), "request is null") == 0, nupa_ccl_error_text());
                      nupa_ccl_op_destroy(1);
                      rank.expect(std::strcmp(nupa_ccl_error_text(), "unknown operator") == 0, "the next one");
                    }),
            all_well(1));
}

}  // namespace
}  // namespace nupa::ccl
