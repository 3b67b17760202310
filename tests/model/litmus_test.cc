// SPDX-License-Identifier: Apache-2.0
// The checker itself, by the tests from the literature that tell memory models apart (Alglave et al., "Herding cats",
// 2014; Lahav et al., "Repairing sequential consistency in C/C++11", 2017).
#include <gtest/gtest.h>

#include "shadow.h"

namespace nupa::litmus {
namespace {

using model::Memory;
using Outcomes = ::std::set<::std::string>;
constexpr auto relaxed = ::std::memory_order_relaxed;
constexpr auto acquire = ::std::memory_order_acquire;
constexpr auto release = ::std::memory_order_release;
constexpr auto acq_rel = ::std::memory_order_acq_rel;
constexpr auto seq_cst = ::std::memory_order_seq_cst;

/// Threads that work on x, y and z and leave what they saw in r.
struct Words {
  std::atomic<int> x, y, z;
  int r[4] = {-1, -1, -1, -1};
};
using Body = void (*)(Words&);

/// What the threads can see: their registers, one digit each.
Outcomes outcomes(Memory memory, int registers, ::std::vector<Body> threads) {
  const model::Result result = model::explore(memory, [&](model::Case& made) {
    auto& words = made.make<Words>();
    for (const Body body : threads) made.thread("thread", [&words, body] { body(words); });
    made.finally([&words, registers] {
      ::std::string text;
      for (int i = 0; i < registers; ++i) text += ::std::to_string(words.r[i]);
      model::outcome(text);
    });
  });
  EXPECT_EQ(result.fault, "");
  return result.outcomes;
}

Outcomes store_buffering(Memory memory, ::std::vector<Body> threads) { return outcomes(memory, 2, threads); }

TEST(ModelLitmus, StoreBuffering_WithoutFences_BothMayMissTheStores) {
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(store_buffering(memory, {[](Words& w) {
                                         w.x.store(1, release);
                                         w.r[0] = w.y.load(acquire);
                                       },
                                       [](Words& w) {
                                         w.y.store(1, release);
                                         w.r[1] = w.x.load(acquire);
                                       }}),
              (Outcomes{"00", "01", "10", "11"}));
}

TEST(ModelLitmus, StoreBuffering_WithFences_OneSeesTheOther) {
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(store_buffering(memory, {[](Words& w) {
                                         w.x.store(1, relaxed);
                                         std::atomic_thread_fence(seq_cst);
                                         w.r[0] = w.y.load(relaxed);
                                       },
                                       [](Words& w) {
                                         w.y.store(1, relaxed);
                                         std::atomic_thread_fence(seq_cst);
                                         w.r[1] = w.x.load(relaxed);
                                       }}),
              (Outcomes{"01", "10", "11"}));
}

TEST(ModelLitmus, StoreBuffering_WithOneFence_BothMayMissTheStores) {
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(store_buffering(memory, {[](Words& w) {
                                         w.x.store(1, relaxed);
                                         std::atomic_thread_fence(seq_cst);
                                         w.r[0] = w.y.load(relaxed);
                                       },
                                       [](Words& w) {
                                         w.y.store(1, relaxed);
                                         w.r[1] = w.x.load(relaxed);
                                       }})
                  .count("00"),
              1u);
}

TEST(ModelLitmus, StoreBuffering_SequentiallyConsistentAccesses_OneSeesTheOther) {
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(store_buffering(memory, {[](Words& w) {
                                         w.x.store(1);
                                         w.r[0] = w.y.load();
                                       },
                                       [](Words& w) {
                                         w.y.store(1);
                                         w.r[1] = w.x.load();
                                       }}),
              (Outcomes{"01", "10", "11"}));
}

TEST(ModelLitmus, StoreBuffering_AcquireReleaseFences_AreNotEnough) {
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(store_buffering(memory, {[](Words& w) {
                                         w.x.store(1, relaxed);
                                         std::atomic_thread_fence(acq_rel);
                                         w.r[0] = w.y.load(relaxed);
                                       },
                                       [](Words& w) {
                                         w.y.store(1, relaxed);
                                         std::atomic_thread_fence(acq_rel);
                                         w.r[1] = w.x.load(relaxed);
                                       }})
                  .count("00"),
              1u);
}

// Updates are full barriers on x86 whatever their order; in C++ they are only for what comes by them.
TEST(ModelLitmus, StoreBuffering_UpdatesOfOtherWordsBetween_FenceOnlyOnX86) {
  const ::std::vector<Body> threads = {[](Words& w) {
                                         w.x.store(1, relaxed);
                                         w.z.fetch_add(1, acq_rel);
                                         w.r[0] = w.y.load(relaxed);
                                       },
                                       [](Words& w) {
                                         w.y.store(1, relaxed);
                                         w.z.fetch_add(1, acq_rel);
                                         w.r[1] = w.x.load(relaxed);
                                       }};
  // Of two updates of one word, one reads the other: that much is ordered in C++ as well.
  EXPECT_EQ(store_buffering(Memory::kTso, threads), (Outcomes{"01", "10", "11"}));
  EXPECT_EQ(store_buffering(Memory::kCpp, threads), (Outcomes{"01", "10", "11"}));
  const ::std::vector<Body> apart = {[](Words& w) {
                                       w.x.store(1, relaxed);
                                       w.z.exchange(1);
                                       w.r[0] = w.y.load(relaxed);
                                     },
                                     [](Words& w) {
                                       w.y.exchange(1);
                                       w.r[1] = w.x.load(relaxed);
                                     }};
  EXPECT_EQ(store_buffering(Memory::kTso, apart).count("00"), 0u);
  EXPECT_EQ(store_buffering(Memory::kCpp, apart).count("00"), 1u);
}

TEST(ModelLitmus, StoreBuffering_FailedCompareExchange_IsABarrierOnX86) {
  const ::std::vector<Body> threads = {[](Words& w) {
                                         w.x.store(1, relaxed);
                                         int expected = 7;
                                         w.z.compare_exchange_strong(expected, 8, relaxed, relaxed);
                                         w.r[0] = w.y.load(relaxed);
                                       },
                                       [](Words& w) {
                                         w.y.exchange(1, relaxed);
                                         w.r[1] = w.x.load(relaxed);
                                       }};
  EXPECT_EQ(store_buffering(Memory::kTso, threads).count("00"), 0u);
  EXPECT_EQ(store_buffering(Memory::kCpp, threads).count("00"), 1u);
}

TEST(ModelLitmus, MessagePassing_ReleaseAndAcquire_BringsTheData) {
  const Body reader = [](Words& w) {
    w.r[0] = w.y.load(acquire);
    w.r[1] = w.x.load(relaxed);
  };
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(outcomes(memory, 2,
                       {[](Words& w) {
                          w.x.store(1, relaxed);
                          w.y.store(1, release);
                        },
                        reader}),
              (Outcomes{"00", "01", "11"}));
}

TEST(ModelLitmus, MessagePassing_RelaxedAtOneEnd_FailsOnlyInCpp) {
  const ::std::vector<Body> no_release = {[](Words& w) {
                                            w.x.store(1, relaxed);
                                            w.y.store(1, relaxed);
                                          },
                                          [](Words& w) {
                                            w.r[0] = w.y.load(acquire);
                                            w.r[1] = w.x.load(relaxed);
                                          }};
  const ::std::vector<Body> no_acquire = {[](Words& w) {
                                            w.x.store(1, relaxed);
                                            w.y.store(1, release);
                                          },
                                          [](Words& w) {
                                            w.r[0] = w.y.load(relaxed);
                                            w.r[1] = w.x.load(relaxed);
                                          }};
  for (const auto& threads : {no_release, no_acquire}) {
    EXPECT_EQ(outcomes(Memory::kTso, 2, threads), (Outcomes{"00", "01", "11"}));
    EXPECT_EQ(outcomes(Memory::kCpp, 2, threads), (Outcomes{"00", "01", "10", "11"}));
  }
}

TEST(ModelLitmus, MessagePassing_FencesAroundRelaxed_BringTheData) {
  EXPECT_EQ(outcomes(Memory::kCpp, 2,
                     {[](Words& w) {
                        w.x.store(1, relaxed);
                        std::atomic_thread_fence(release);
                        w.y.store(1, relaxed);
                      },
                      [](Words& w) {
                        w.r[0] = w.y.load(relaxed);
                        std::atomic_thread_fence(acquire);
                        w.r[1] = w.x.load(relaxed);
                      }}),
            (Outcomes{"00", "01", "11"}));
}

TEST(ModelLitmus, MessagePassing_AnUpdateBetween_ContinuesTheReleaseSequence) {
  EXPECT_EQ(outcomes(Memory::kCpp, 2,
                     {[](Words& w) {
                        w.x.store(1, relaxed);
                        w.y.store(1, release);
                      },
                      [](Words& w) {
                        int one = 1;
                        w.y.compare_exchange_strong(one, 2, relaxed, relaxed);
                      },
                      [](Words& w) {
                        w.r[0] = w.y.load(acquire);
                        w.r[1] = w.x.load(relaxed);
                      }}),
            (Outcomes{"00", "01", "11", "21"}));
}

TEST(ModelLitmus, LoadBuffering_IsExcluded) {
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(outcomes(memory, 2,
                       {[](Words& w) {
                          w.r[0] = w.x.load(relaxed);
                          w.y.store(1, relaxed);
                        },
                        [](Words& w) {
                          w.r[1] = w.y.load(relaxed);
                          w.x.store(1, relaxed);
                        }}),
              (Outcomes{"00", "01", "10"}));
}

::std::vector<Body> independent_reads_acquire() {
  return {[](Words& w) { w.x.store(1, release); }, [](Words& w) { w.y.store(1, release); },
          [](Words& w) {
            w.r[0] = w.x.load(acquire);
            w.r[1] = w.y.load(acquire);
          },
          [](Words& w) {
            w.r[2] = w.y.load(acquire);
            w.r[3] = w.x.load(acquire);
          }};
}

TEST(ModelLitmus, IndependentReadsOfIndependentWrites_AcquireRelease_MayDisagreeOnlyInCpp) {
  EXPECT_EQ(outcomes(Memory::kTso, 4, independent_reads_acquire()).count("1010"), 0u);
  EXPECT_EQ(outcomes(Memory::kCpp, 4, independent_reads_acquire()).count("1010"), 1u);
  EXPECT_EQ(outcomes(Memory::kCpp, 4, independent_reads_acquire()).size(), 16u);
}

TEST(ModelLitmus, IndependentReadsOfIndependentWrites_SequentiallyConsistentOrFences_Agree) {
  EXPECT_EQ(outcomes(Memory::kCpp, 4,
                     {[](Words& w) { w.x.store(1); }, [](Words& w) { w.y.store(1); },
                      [](Words& w) {
                        w.r[0] = w.x.load();
                        w.r[1] = w.y.load();
                      },
                      [](Words& w) {
                        w.r[2] = w.y.load();
                        w.r[3] = w.x.load();
                      }})
                .size(),
            15u);
  EXPECT_EQ(outcomes(Memory::kCpp, 4,
                     {[](Words& w) { w.x.store(1, relaxed); }, [](Words& w) { w.y.store(1, relaxed); },
                      [](Words& w) {
                        w.r[0] = w.x.load(relaxed);
                        std::atomic_thread_fence(seq_cst);
                        w.r[1] = w.y.load(relaxed);
                      },
                      [](Words& w) {
                        w.r[2] = w.y.load(relaxed);
                        std::atomic_thread_fence(seq_cst);
                        w.r[3] = w.x.load(relaxed);
                      }})
                .count("1010"),
            0u);
}

TEST(ModelLitmus, CoherentReads_NeverGoBack) {
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(outcomes(memory, 2,
                       {[](Words& w) {
                          w.x.store(1, relaxed);
                          w.x.store(2, relaxed);
                        },
                        [](Words& w) {
                          w.r[0] = w.x.load(relaxed);
                          w.r[1] = w.x.load(relaxed);
                        }}),
              (Outcomes{"00", "01", "02", "11", "12", "22"}));
}

TEST(ModelLitmus, TwoPlusTwoWrites_WeakOnlyInCpp) {
  const ::std::vector<Body> threads = {[](Words& w) {
                                         w.x.store(1, relaxed);
                                         w.y.store(2, relaxed);
                                       },
                                       [](Words& w) {
                                         w.y.store(1, relaxed);
                                         w.x.store(2, relaxed);
                                       }};
  const auto last = [&](Memory memory) {
    return model::explore(memory,
                          [&](model::Case& made) {
                            auto& words = made.make<Words>();
                            for (const Body body : threads) made.thread("thread", [&words, body] { body(words); });
                            made.finally([&words] {
                              model::outcome(::std::to_string(words.x.load()) + ::std::to_string(words.y.load()));
                            });
                          })
        .outcomes;
  };
  EXPECT_EQ(last(Memory::kTso), (Outcomes{"12", "21", "22"}));
  EXPECT_EQ(last(Memory::kCpp), (Outcomes{"11", "12", "21", "22"}));
}

// A store may be read by its own thread before others see it (SB with forwarding: x86 allows it).
TEST(ModelLitmus, StoreForwarding_OwnStoreIsReadEarly) {
  EXPECT_EQ(outcomes(Memory::kTso, 4,
                     {[](Words& w) {
                        w.x.store(1, relaxed);
                        w.r[0] = w.x.load(relaxed);
                        w.r[1] = w.y.load(relaxed);
                      },
                      [](Words& w) {
                        w.y.store(1, relaxed);
                        w.r[2] = w.y.load(relaxed);
                        w.r[3] = w.x.load(relaxed);
                      }})
                .count("1010"),
            1u);
}

TEST(ModelLitmus, WriteToReadCausality_IsKeptByAcquireAndRelease) {
  EXPECT_EQ(outcomes(Memory::kCpp, 3,
                     {[](Words& w) { w.x.store(1, relaxed); },
                      [](Words& w) {
                        w.r[0] = w.x.load(acquire);
                        w.y.store(1, release);
                      },
                      [](Words& w) {
                        w.r[1] = w.y.load(acquire);
                        w.r[2] = w.x.load(relaxed);
                      }})
                .count("110"),
            0u);
}

TEST(ModelLitmus, Updates_AreAtomic) {
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(outcomes(memory, 3,
                       {[](Words& w) { w.r[0] = w.x.fetch_add(1, relaxed); },
                        [](Words& w) { w.r[1] = w.x.fetch_add(1, relaxed); },
                        [](Words& w) { w.r[2] = w.x.fetch_add(1, relaxed); }}),
              (Outcomes{"012", "021", "102", "120", "201", "210"}));
}

// Lahav et al., figure 4 (Z6.U): mixing sequentially consistent accesses with others gives less than x86 gives.
TEST(ModelLitmus, Flag_TakenBack_ShowsWhatCameBeforeOnlyByAnUpdate) {
  // x is a change and y the flag that says so. "00": the flag is taken back, and the change was not seen.
  const auto take_back = [](Memory memory, Body taker) {
    return model::explore(memory, [&](model::Case& made) {
      auto& words = made.make<Words>();
      made.thread("changes", [&words] {
        words.x.store(1, release);
        words.y.exchange(1, seq_cst);
      });
      made.thread("takes back", [&words, taker] { taker(words); });
      made.finally([&words] {
        if (words.y.load() == 0) model::outcome("0" + ::std::to_string(words.r[0]));
      });
    });
  };
  const Body by_store = [](Words& w) {
    w.y.store(0, seq_cst);
    w.r[0] = w.x.load(acquire);
  };
  const Body by_update = [](Words& w) {
    w.y.exchange(0, seq_cst);
    w.r[0] = w.x.load(acquire);
  };
  EXPECT_EQ(take_back(Memory::kTso, by_store).outcomes, (Outcomes{"01"}));
  EXPECT_EQ(take_back(Memory::kCpp, by_store).outcomes, (Outcomes{"00", "01"}));
  EXPECT_EQ(take_back(Memory::kCpp, by_update).outcomes, (Outcomes{"01"}));
}

TEST(ModelLitmus, CompareExchange_OfTwoThreads_EitherWins) {
  // The second thread does nothing but compare and exchange: where it is too late, it stores nothing at all.
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(outcomes(memory, 2,
                       {[](Words& w) {
                          int seen = 0;
                          w.r[0] = w.x.compare_exchange_strong(seen, 1, relaxed) ? 1 : 0;
                        },
                        [](Words& w) {
                          int seen = 0;
                          w.r[1] = w.x.compare_exchange_strong(seen, 2, relaxed) ? 1 : 0;
                        }}),
              (Outcomes{"01", "10"}));
}

TEST(ModelLitmus, SequentiallyConsistentAmongOthers_IsAsWeakAsRc11Says) {
  EXPECT_EQ(outcomes(Memory::kCpp, 3,
                     {[](Words& w) {
                        w.x.store(1);
                        w.y.store(1, release);
                      },
                      [](Words& w) {
                        w.r[0] = w.y.fetch_add(1);
                        w.r[1] = w.y.load(relaxed);
                      },
                      [](Words& w) {
                        w.y.store(3);
                        w.r[2] = w.x.load();
                      }})
                .count("130"),
            1u);
}

::std::vector<Body> asymmetric(bool membarrier, bool light) {
  const Body heavy = [](Words& w) {
    w.x.store(1, relaxed);
    model::operations::fence(seq_cst, model::Weight::kHeavy, {model::Where::current(), "fence", seq_cst});
    w.r[0] = w.y.load(relaxed);
  };
  const Body nothing = [](Words& w) {
    w.x.store(1, relaxed);
    w.r[0] = w.y.load(relaxed);
  };
  const Body lightly = [](Words& w) {
    w.y.store(1, relaxed);
    std::atomic_signal_fence(seq_cst);
    w.r[1] = w.x.load(relaxed);
  };
  const Body bare = [](Words& w) {
    w.y.store(1, relaxed);
    w.r[1] = w.x.load(relaxed);
  };
  return {membarrier ? heavy : nothing, light ? lightly : bare};
}

TEST(ModelLitmus, Membarrier_FencesTheOtherThread) {
  EXPECT_EQ(outcomes(Memory::kTso, 2, asymmetric(true, true)), (Outcomes{"01", "10", "11"}));
  EXPECT_EQ(outcomes(Memory::kTso, 2, asymmetric(true, false)), (Outcomes{"01", "10", "11"}));
  EXPECT_EQ(outcomes(Memory::kCpp, 2, asymmetric(true, true)), (Outcomes{"01", "10", "11"}));
}

TEST(ModelLitmus, Membarrier_NeedsACompilerBarrierThere) {
  EXPECT_EQ(outcomes(Memory::kCpp, 2, asymmetric(true, false)).count("00"), 1u);
  for (const Memory memory : {Memory::kTso, Memory::kCpp})
    EXPECT_EQ(outcomes(memory, 2, asymmetric(false, true)).count("00"), 1u);
}

TEST(ModelLitmus, DataRace_IsFound) {
  const auto racing = [](::std::memory_order order) {
    return model::explore(Memory::kCpp, [order](model::Case& made) {
      auto& words = made.make<Words>();
      made.thread("writer", [&words, order] {
        model::note_access(&words.r[0], 4, true);
        words.x.store(1, order);
      });
      made.thread("reader", [&words] {
        if (words.x.load(acquire) == 1) model::note_access(&words.r[0], 4, false);
      });
    });
  };
  EXPECT_TRUE(racing(release).ok());
  EXPECT_NE(racing(relaxed).fault.find("data race of writer and reader"), ::std::string::npos);
}

TEST(ModelLitmus, ThreadThatWaitsForever_IsFound) {
  const auto waiting = [](int value) {
    return model::explore(Memory::kTso, [value](model::Case& made) {
      auto& words = made.make<Words>();
      made.thread("waiter", [&words] {
        while (words.x.load(acquire) != 1) _mm_pause();
      });
      made.thread("other", [&words, value] { words.x.store(value, release); });
    });
  };
  EXPECT_TRUE(waiting(1).ok());
  EXPECT_NE(waiting(2).fault.find("waits forever: waiter"), ::std::string::npos);
}

// How many there are is known: each execution is looked at once.
TEST(ModelLitmus, Executions_AreEachSeenOnce) {
  for (const Memory memory : {Memory::kTso, Memory::kCpp}) {
    const auto count = [memory](int threads) {
      return model::explore(memory,
                            [threads](model::Case& made) {
                              auto& words = made.make<Words>();
                              for (int i = 0; i < threads; ++i)
                                made.thread("thread", [&words] { words.x.fetch_add(1, relaxed); });
                            })
          .executions;
    };
    EXPECT_EQ(count(2), 2u);
    EXPECT_EQ(count(3), 6u);
    EXPECT_EQ(count(4), 24u);
  }
  EXPECT_EQ(model::explore(Memory::kCpp,
                           [](model::Case& made) {
                             auto& words = made.make<Words>();
                             for (const Body body : independent_reads_acquire())
                               made.thread("thread", [&words, body] { body(words); });
                           })
                .executions,
            16u);
}

}  // namespace
}  // namespace nupa::litmus
