// SPDX-License-Identifier: Apache-2.0
/// Compares every operation among processes with a serial reference.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "reference.h"
#include "../support/sanitizers.h"

namespace nupa::ccl {
namespace {

using CclOperations = WithSmallSlots;

TEST_F(CclOperations, Reductions_EveryTypeAndOperator_EqualTheSerialReference) {
  for (const uint32_t ranks : rank_counts()) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      uint32_t seed = 0;
      for (uint32_t t = 0; t < kTypes; ++t)
        for (const nupa_ccl_op op : kOps) {
          const auto type = static_cast<Type>(t);
          // Half of the types, and the other half with one rank more: each type's arithmetic has tests of its own.
          if (!is_defined(static_cast<Operator>(op), type) || (t + rank.ranks()) % 2 != 0) continue;
          for (const size_t elements : kSizes) {
            // All sizes with sums, two of them with each of the others.
            ++seed;
            if (op != NUPA_CCL_SUM && seed % 4 != 0) continue;
            const Round round{type, elements, seed};
            for (const bool in_place : {false, true}) {
              check_reductions(rank, round, op, in_place);
              check_reduce_scatter(rank, {type, elements * rank.ranks(), seed}, op, in_place);
            }
          }
        }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST_F(CclOperations, Movements_EveryType_EqualTheSerialReference) {
  for (const uint32_t ranks : rank_counts()) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      uint32_t seed = 0;
      for (uint32_t t = 0; t < kTypes; ++t) {
        // Movements copy bytes: with more than two ranks, one type of each length is enough.
        constexpr uint32_t kOneOfEachLength = 1 << 0 | 1 << 2 | 1 << 4 | 1 << 6;
        if (rank.ranks() != 2 && (kOneOfEachLength >> t & 1) == 0) continue;
        for (const size_t elements : kSizes)
          for (const bool in_place : {false, true})
            check_movements(rank, {static_cast<Type>(t), elements, ++seed}, in_place);
      }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

/// RoCE sends such arrays from where they lie. The test frees or overwrites them as soon as an operation is done.
TEST_F(CclOperations, LargeArrays_EveryOperation_EqualTheSerialReference) {
  for (const uint32_t ranks : test::kSanitized ? std::vector{2u} : std::vector{2u, 3u}) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      constexpr size_t kElements = 1'100'003;
      const bool in_place = rank.ranks() == 3;
      const Round round{Type::kFloat32, kElements, 1u + in_place, true};
      check_reductions(rank, round, NUPA_CCL_SUM, in_place);
      check_reduce_scatter(rank, {Type::kInt32, kElements * rank.ranks(), 5}, NUPA_CCL_SUM, in_place);
      check_movements(rank, round, in_place);
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST_F(CclOperations, BlocksOfDifferentLengths_EveryOperation_EqualTheSerialReference) {
  for (const uint32_t ranks : rank_counts()) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      for (uint32_t seed = 0; seed < 40; ++seed) check_uneven(rank, seed);
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST_F(CclOperations, PremultipliedSumAndUserFunctions_EqualTheSerialReference) {
  for (const uint32_t ranks : {1u, 2u, 5u}) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      for (const size_t elements : kSizes) {
        const Round round{Type::kFloat32, elements, 9};
        std::vector<Bytes> factors;
        for (uint32_t of = 0; of < rank.ranks(); ++of) factors.push_back(numbers(Type::kFloat32, 1, 1000 + of));
        nupa_ccl_op op;
        rank.expect_ok(nupa_ccl_op_create_premultiplied_sum(factors[rank.rank()].data(), NUPA_CCL_FLOAT32, &op), "op");
        const Bytes in = round.of(rank.rank());
        Bytes out(in.size());
        rank.expect_ok(
            nupa_ccl_all_reduce(in.data(), out.data(), elements, NUPA_CCL_FLOAT32, op, rank.world(), nullptr),
            round.text("premultiplied", false));
        rank.expect(out == reduced(round, {Type::kFloat32, Operator::kPremultipliedSum}, 0, rank.ranks(), factors),
                    round.text("premultiplied is wrong", false));
        rank.expect_ok(nupa_ccl_op_destroy(op), "op_destroy");

        check_joining(rank, elements);
      }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

/// Small operations, blocking and begun, in a random order, with ranks that are late at random.
TEST_F(CclOperations, SmallOperations_InRandomOrder_GiveTheirResults) {
  const char* const transport = std::getenv("NUPA_TRANSPORT");
  const bool by_packets = transport != nullptr && std::strcmp(transport, "roce") == 0;
  const int64_t turns = test::kSanitized || by_packets ? 2000 : 20'000;  // by packets all take the same path
  for (const uint32_t ranks : {2u, 3u, 5u}) {
    const auto endings = run_job(ranks, [turns](Rank& rank) {
      std::mt19937 shared(7);
      std::mt19937 own(rank.rank());
      const int64_t n = rank.ranks();
      for (int64_t turn = 0; turn < turns; ++turn) {
        const uint32_t kind = shared() % 5;
        const uint32_t root = shared() % rank.ranks();
        const bool begins = shared() % 8 == 0;
        if (own() % 64 == 0) usleep(own() % 100);  // sleep: some ranks are late, at random
        nupa_ccl_request* begun = nullptr;
        nupa_ccl_request** const request = begins ? &begun : nullptr;
        int64_t value[9] = {turn * 1000 + rank.rank()};
        int64_t all[9] = {};
        nupa_ccl_comm* const world = rank.world();
        int error = 0;
        if (kind == 0) error = nupa_ccl_all_reduce(value, all, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, world, request);
        if (kind == 1) error = nupa_ccl_broadcast(value, 1, NUPA_CCL_INT64, root, world, request);
        if (kind == 2) error = nupa_ccl_all_gather(value, all, 1, NUPA_CCL_INT64, world, request);
        if (kind == 3) error = nupa_ccl_barrier(world, request);
        // By slots, in the same turns.
        if (kind == 4) error = nupa_ccl_scan(value, all, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, world, request);
        if (error == 0 && begins) error = nupa_ccl_wait(begun);
        rank.expect_ok(error, "a small one");
        const int64_t upto = kind == 4 ? rank.rank() + 1 : n;
        if (kind == 0 || kind == 4) rank.expect(all[0] == upto * turn * 1000 + upto * (upto - 1) / 2, "sum");
        if (kind == 1) rank.expect(value[0] == turn * 1000 + root, "broadcast");
        for (int64_t i = 0; kind == 2 && i < n; ++i) rank.expect(all[i] == turn * 1000 + i, "all_gather");
      }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST_F(CclOperations, Requests_SeveralBegun_AreDoneInOrder) {
  for (const uint32_t ranks : {1u, 2u, 4u}) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      for (int turn = 0; turn < 10; ++turn) {
        constexpr size_t kElements = 3000;
        std::vector<std::vector<int64_t>> arrays;
        std::vector<nupa_ccl_request*> requests(8);
        for (size_t i = 0; i < requests.size(); ++i) arrays.emplace_back(kElements, rank.rank() + i);
        // The second half goes on with the results of the first one.
        for (size_t i = 0; i < requests.size(); ++i) {
          auto& array = arrays[i % 4];
          rank.expect_ok(nupa_ccl_all_reduce(array.data(), array.data(), kElements, NUPA_CCL_INT64, NUPA_CCL_SUM,
                                             rank.world(), &requests[i]),
                         "begin");
        }
        int done = 0;
        if (turn % 2 == 0)
          for (; done == 0; std::this_thread::yield()) rank.expect_ok(nupa_ccl_test(requests.back(), &done), "test");
        for (auto* const request : requests) rank.expect_ok(nupa_ccl_wait(request), "wait");
        const int64_t n = rank.ranks();
        for (int64_t i = 0; i < 4; ++i)
          rank.expect(arrays[static_cast<size_t>(i)] == std::vector<int64_t>(kElements, (n * (n - 1) / 2 + n * i) * n),
                      "a result is wrong");
      }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

/// A reader that is held at its first store into a page until a rank has returned (`returned`) or some time has passed.
/// No rank should return while it reads, so there is no event to wait for.
struct HeldReader {
  static inline std::byte* page = nullptr;
  static inline size_t bytes = 0;
  static inline const SharedCount* returned = nullptr;

  static void go_on(int, siginfo_t* info, void*) {
    const auto* const at = static_cast<std::byte*>(info->si_addr);
    if (at < page || at >= page + bytes) _exit(98);
    // sleep: a call that returns too early does so within that time
    for (int waited_ms = 0; returned->now() == 0 && waited_ms < 200; ++waited_ms) usleep(1000);
    mprotect(page, bytes, PROT_READ | PROT_WRITE);
  }
};

TEST_F(CclOperations, AllToAll_PeerIsStillReading_ReturnsAfterTheRead) {
  if (std::getenv("NUPA_TRANSPORT") != nullptr && std::string(std::getenv("NUPA_TRANSPORT")) == "roce")
    GTEST_SKIP() << "by packets no memory is shared";
  if (std::getenv("NUPA_CCL_MAPPED_RANKS") != nullptr) GTEST_SKIP() << "no rank reads another rank's array";
  const SharedCount returned;
  const auto endings = run_job(2, [&](Rank& rank) {
    constexpr size_t kElements = 64 << 10;
    constexpr size_t kBytes = kElements * sizeof(int32_t);
    auto* const in = static_cast<int32_t*>(nupa_ccl_alloc(2 * kBytes));
    void* const out = mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    rank.expect(in != nullptr && out != MAP_FAILED, "memory");
    const auto self = static_cast<int32_t>(rank.rank());
    std::fill_n(in, 2 * kElements, self);
    rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
    if (self == 1) {
      // Where the other one's elements come to.
      HeldReader::page = static_cast<std::byte*>(out);
      HeldReader::bytes = kBytes;
      HeldReader::returned = &returned;
      struct sigaction action {};
      action.sa_sigaction = &HeldReader::go_on;
      action.sa_flags = SA_SIGINFO;
      sigaction(SIGSEGV, &action, nullptr);
      mprotect(out, kBytes, PROT_NONE);
    }
    rank.expect_ok(nupa_ccl_all_to_all(in, out, kElements, NUPA_CCL_INT32, rank.world(), nullptr), "all_to_all");
    std::fill_n(in, 2 * kElements, -1);
    returned.add();
    const auto* const got = static_cast<const int32_t*>(out);
    for (size_t i = 0; i < 2 * kElements; ++i)
      rank.expect(got[i] == static_cast<int32_t>(i / kElements), "what was read is what was given");
    rank.finish();
    nupa_ccl_free(in);
  });
  EXPECT_EQ(endings, all_well(2));
}

/// Large enough for ranks to copy from each other's arrays. Each rank overwrites its arrays when the call returns.
TEST_F(CclOperations, Arrays_OverwrittenWhenACallReturns_ResultsStayRight) {
  EXPECT_EQ(
      run_job(
          3,
          [](Rank& rank) {
            constexpr size_t kElements = 40'000;
            const uint32_t self = rank.rank();
            nupa_ccl_comm* const world = rank.world();
            std::vector<int32_t> in(3 * kElements);
            std::vector<int32_t> out(3 * kElements);
            std::vector<int32_t> got;
            for (int32_t turn = 0; turn < 12; ++turn) {
              const uint32_t root = static_cast<uint32_t>(turn) % 3;
              const auto value = [&](uint32_t of) { return turn * 10 + static_cast<int32_t>(of); };
              const auto begin = [&] { in.assign(in.size(), value(self)); };
              // The last elements first, which are read last.
              const auto overwrite = [&] { std::fill(in.rbegin(), in.rend(), -1); };
              const auto done = [&](int error, const char* what) {
                for (size_t block = 1; block <= 3; ++block) in[block * kElements - 1] = -1;
                overwrite();
                rank.expect_ok(error, what);
                got = out;
                out.assign(out.size(), -2);
              };
              const auto expect = [&](size_t at, int32_t expected, const char* what) {
                for (size_t i = 0; i < kElements; ++i) rank.expect(got[at * kElements + i] == expected, what);
              };
              begin();
              rank.expect_ok(nupa_ccl_broadcast(in.data(), kElements, NUPA_CCL_INT32, root, world, nullptr),
                             "broadcast");
              got = in;
              in.assign(in.size(), -1);
              expect(0, value(root), "broadcast");
              begin();
              done(nupa_ccl_gather(in.data(), out.data(), kElements, NUPA_CCL_INT32, root, world, nullptr), "gather");
              for (uint32_t of = 0; self == root && of < 3; ++of) expect(of, value(of), "gather");
              begin();
              done(nupa_ccl_scatter(in.data(), out.data(), kElements, NUPA_CCL_INT32, root, world, nullptr), "scatter");
              expect(0, value(root), "scatter");
              begin();
              done(nupa_ccl_all_gather(in.data(), out.data(), kElements, NUPA_CCL_INT32, world, nullptr), "all_gather");
              for (uint32_t of = 0; of < 3; ++of) expect(of, value(of), "all_gather");
              begin();
              done(nupa_ccl_all_to_all(in.data(), out.data(), kElements, NUPA_CCL_INT32, world, nullptr), "all_to_all");
              for (uint32_t of = 0; of < 3; ++of) expect(of, value(of), "all_to_all");
              const auto all = value(0) + value(1) + value(2);
              begin();
              done(nupa_ccl_all_reduce(in.data(), out.data(), kElements, NUPA_CCL_INT32, NUPA_CCL_SUM, world, nullptr),
                   "all_reduce");
              expect(0, all, "all_reduce");
              begin();
              done(
                  nupa_ccl_reduce(in.data(), out.data(), kElements, NUPA_CCL_INT32, NUPA_CCL_SUM, root, world, nullptr),
                  "reduce");
              if (self == root) expect(0, all, "reduce");
              begin();
              done(nupa_ccl_reduce_scatter(in.data(), out.data(), kElements, NUPA_CCL_INT32, NUPA_CCL_SUM, world,
                                           nullptr),
                   "reduce_scatter");
              expect(0, all, "reduce_scatter");
              begin();
              done(nupa_ccl_scan(in.data(), out.data(), kElements, NUPA_CCL_INT32, NUPA_CCL_SUM, world, nullptr),
                   "scan");
              expect(0, value(0) + (self > 0 ? value(1) : 0) + (self > 1 ? value(2) : 0), "scan");
            }
          }),
      all_well(3));
}

/// Without the checking mode, a fragment's length shows the mismatch.
TEST_F(CclOperations, DifferentCounts_ByMessages_FailAllRanksWithEproto) {
  setenv("NUPA_CCL_MAPPED_RANKS", "1", 1);
  setenv("NUPA_CCL_TIMEOUT", "20", 1);
  using Play = int (*)(void* data, void* out, size_t count, nupa_ccl_comm* comm);
  struct Case {
    const char* choice;
    Play play;
  };
  const Case cases[] = {
      {"", [](void* in, void*, size_t count,
              nupa_ccl_comm* comm) { return nupa_ccl_broadcast(in, count, NUPA_CCL_INT32, 0, comm, nullptr); }},
      {"broadcast=binomial",
       [](void* in, void*, size_t count, nupa_ccl_comm* comm) {
         return nupa_ccl_broadcast(in, count, NUPA_CCL_INT32, 0, comm, nullptr);
       }},
      {"", [](void* in, void* out, size_t count,
              nupa_ccl_comm* comm) { return nupa_ccl_gather(in, out, count, NUPA_CCL_INT32, 0, comm, nullptr); }},
      {"", [](void* in, void* out, size_t count,
              nupa_ccl_comm* comm) { return nupa_ccl_all_gather(in, out, count, NUPA_CCL_INT32, comm, nullptr); }},
      {"",
       [](void* in, void* out, size_t count, nupa_ccl_comm* comm) {
         return nupa_ccl_reduce(in, out, count, NUPA_CCL_INT32, NUPA_CCL_SUM, 0, comm, nullptr);
       }},
      {"all_reduce=one-shot",
       [](void* in, void* out, size_t count, nupa_ccl_comm* comm) {
         return nupa_ccl_all_reduce(in, out, count, NUPA_CCL_INT32, NUPA_CCL_SUM, comm, nullptr);
       }},
      {"all_reduce=slices",
       [](void* in, void* out, size_t count, nupa_ccl_comm* comm) {
         return nupa_ccl_all_reduce(in, out, count, NUPA_CCL_INT32, NUPA_CCL_SUM, comm, nullptr);
       }},
      {"all_reduce=doubling", [](void* in, void* out, size_t count, nupa_ccl_comm* comm) {
         return nupa_ccl_all_reduce(in, out, count, NUPA_CCL_INT32, NUPA_CCL_SUM, comm, nullptr);
       }}};
  EXPECT_EQ(run_job(2,
                    [&](Rank& rank) {
                      for (const Case& one : cases) {
                        setenv("NUPA_CCL_ALGO", one.choice, 1);
                        std::vector<int32_t> in(2000, 1);
                        std::vector<int32_t> out(2000, 5);
                        rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
                        // A rank that only sends may return before the mismatch is detected.
                        int error = one.play(in.data(), out.data(), rank.rank() == 0 ? 300 : 301, rank.world());
                        while (error == 0) error = nupa_ccl_barrier(rank.world(), nullptr);
                        rank.expect(error == EPROTO, std::string(one.choice) + " ended by " + nupa_ccl_error_text());
                        rank.finish();
                      }
                    }),
            all_well(2));
  for (const char* const name : {"NUPA_CCL_MAPPED_RANKS", "NUPA_CCL_TIMEOUT", "NUPA_CCL_ALGO"}) unsetenv(name);
}

TEST_F(CclOperations, GroupEnd_OfAnInnerGroup_BeginsNothing) {
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      int32_t value = 1;
                      rank.expect_ok(nupa_ccl_group_start(), "outer");
                      rank.expect_ok(nupa_ccl_group_start(), "inner");
                      rank.expect_ok(
                          nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_INT32, NUPA_CCL_SUM, rank.world(), nullptr),
                          "all_reduce");
                      nupa_ccl_request* request = nullptr;
                      rank.expect_ok(nupa_ccl_group_end(nullptr), "inner");
                      rank.expect(value == 1, "nothing has been done");
                      rank.expect_ok(nupa_ccl_group_end(&request), "outer");
                      rank.expect(request != nullptr, "the outer one's request");
                      rank.expect_ok(nupa_ccl_wait(request), "wait");
                      rank.expect(value == 2, "the sum");
                    }),
            all_well(2));
}

TEST_F(CclOperations, WrongArguments_AreRefusedAndBeginNothing) {
  EXPECT_EQ(
      run_job(
          2,
          [](Rank& rank) {
            float value = 1;
            auto* const world = rank.world();
            const auto refused = [&](int error, const char* what) {
              rank.expect(error == EINVAL && *nupa_ccl_error_text() != 0, what);
            };
            refused(
                nupa_ccl_all_reduce(&value, &value, 1, static_cast<nupa_ccl_type>(14), NUPA_CCL_SUM, world, nullptr),
                "a type that is none");
            refused(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_FLOAT32, 12, world, nullptr), "no operator");
            refused(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_FLOAT32, 5, world, nullptr), "no factor");
            refused(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_FLOAT32, NUPA_CCL_BIT_OR, world, nullptr),
                    "bits of floating point");
            refused(nupa_ccl_all_reduce(nullptr, &value, 1, NUPA_CCL_FLOAT32, NUPA_CCL_SUM, world, nullptr), "nowhere");
            refused(nupa_ccl_broadcast(&value, 1, NUPA_CCL_FLOAT32, 2, world, nullptr), "no such root");
            refused(nupa_ccl_scan(&value, &value, 1, NUPA_CCL_FLOAT32, NUPA_CCL_AVERAGE, world, nullptr), "average");
            refused(nupa_ccl_all_reduce(&value, &value, SIZE_MAX / 2, NUPA_CCL_FLOAT32, NUPA_CCL_SUM, world, nullptr),
                    "too large");
            refused(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_FLOAT32, NUPA_CCL_SUM, nullptr, nullptr), "none");
            // Nothing of this was begun.
            rank.expect_ok(nupa_ccl_barrier(world, nullptr), "barrier");
          }),
      all_well(2));
}

}  // namespace
}  // namespace nupa::ccl
