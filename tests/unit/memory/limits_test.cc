// SPDX-License-Identifier: Apache-2.0
// Tests of the limits of the process: they give an errno or fewer pieces, never a signal or lost data.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <cerrno>

#include "region_test_support.h"
#include "../../support/sanitizers.h"

namespace nupa::memory::testing {
namespace {

class RemapperLimits : public ::testing::TestWithParam<Way> {
 protected:
  static RemapOptions options() {
    RemapOptions options;
    options.may_move = GetParam().may_move;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(All, RemapperLimits, ::testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(RemapperLimits, Share_BeyondTheFileSizeLimit_FailsWithEfbig) {
  EXPECT_EQ(in_child([] {
              const rlimit limit{64 * kPageSize, 64 * kPageSize};
              if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              auto remapper = make_remapper(Policy::kAuto, options());
              Memory memory(100);
              memory.fill();
              auto pieces = remapper->share(memory.data(), memory.size(), true);
              if (pieces || pieces.error().code() != EFBIG) return 2;
              if (remapper->allocate(memory.size()).error().code() != EFBIG) return 3;
              auto small = remapper->share(memory.data(), 10 * kPageSize, true);
              if (!small || bytes_of(*small) != 10 * kPageSize) return 4;
              remapper->unshare(memory.data(), 10 * kPageSize);
              return memory.filled() ? 0 : 5;
            }),
            0);
}

TEST_P(RemapperLimits, Share_FileSizeLimitLoweredLater_FailsWithEfbigAndKeepsTheData) {
  EXPECT_EQ(in_child([] {
              auto remapper = make_remapper(Policy::kAuto, options());
              Memory memory(1200);
              memory.fill();
              Memory first(1);
              if (!remapper->share(first.data(), first.size(), true)) return 1;
              // The file is long enough already, but a write into it beyond the limit fails: in the
              // middle.
              const rlimit limit{600 * kPageSize, 600 * kPageSize};
              if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              auto pieces = remapper->share(memory.data(), memory.size(), true);
              if (pieces || pieces.error().code() != EFBIG) return 2;
              if (!memory.filled()) return 3;
              if (is_shared(memory.data())) return 4;
              return 0;
            }),
            0);
}

TEST_P(RemapperLimits, Share_FewMappingsAreLeft_GivesFewerPiecesAndKeepsTheData) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer itself needs mappings";
  EXPECT_EQ(in_child([] {
              auto remapper = make_remapper(Policy::kAuto, options());
              Memory memory(4096);
              memory.fill();
              // Use up every mapping but a few: pages of alternating protection do not join.
              Memory filler(70000, PROT_NONE);
              size_t at = 1;
              while (at < 70000 && mprotect(filler.data() + at * kPageSize, kPageSize, PROT_READ) == 0) at += 2;
              if (at >= 70000) return 1;
              for (int give = 0; give < 12; ++give) {
                size_t shared = 0;
                for (size_t page = 1; page + 1 < 4096; page += 2) {
                  auto pieces = remapper->share(memory.data() + page * kPageSize, kPageSize, true);
                  if (!pieces && pieces.error().code() != ENOMEM) return 2;
                  if (pieces) shared += pieces->size();
                  if (page > 100 && shared == 0) break;
                }
                if (!memory.filled()) return 3;
                for (size_t page = 1; page + 1 < 4096; page += 2)
                  remapper->unshare(memory.data() + page * kPageSize, kPageSize);
                if (!memory.filled()) return 4;
                if (give == 11 && shared == 0) return 5;
                at -= 2;
                mprotect(filler.data() + at * kPageSize, kPageSize, PROT_NONE);
              }
              return 0;
            }),
            0);
}

TEST_P(RemapperLimits, Unshare_NoMappingIsLeft_StaysSharedUntilLaterAndIsCopiedInAChild) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer itself needs mappings";
  EXPECT_EQ(in_child([] {
              auto remapper = make_remapper(Policy::kAuto, options());
              Memory memory(9);
              memory.fill();
              uint8_t* const middle = memory.data() + 3 * kPageSize;
              uint8_t* const last = memory.data() + 6 * kPageSize;
              // All of it and both ends: without the first registration the middle has to go back, as a mapping more.
              if (!remapper->share(memory.data(), memory.size(), true)) return 1;
              if (!remapper->share(memory.data(), 3 * kPageSize, true)) return 1;
              if (!remapper->share(last, 3 * kPageSize, true)) return 1;
              Memory filler(70000, PROT_NONE);
              size_t at = 1;
              while (at < 70000 && mprotect(filler.data() + at * kPageSize, kPageSize, PROT_READ) == 0) at += 2;
              if (at >= 70000) return 2;
              remapper->unshare(memory.data(), memory.size());
              if (!is_shared(middle)) return 3;
              for (int i = 0; i < 20; ++i) mprotect(filler.data() + (at -= 2) * kPageSize, kPageSize, PROT_NONE);
              const pid_t child = fork();
              if (child == 0) {
                *middle = 99;
                _exit(0);
              }
              int status = 0;
              if (waitpid(child, &status, 0) != child || status != 0) return 4;
              if (*middle != Memory::pattern(3 * kPageSize)) return 5;
              remapper->unshare(last, 3 * kPageSize);
              if (is_shared(middle) || is_shared(last)) return 6;
              return memory.filled() ? 0 : 7;
            }),
            0);
}

TEST_P(RemapperLimits, Share_MaxPiecesReached_SharesNoMore) {
  RemapOptions few = options();
  few.max_pieces = 10;
  auto remapper = make_remapper(Policy::kAuto, few);
  Memory memory(64);
  memory.fill();
  int shared = 0;
  for (size_t page = 0; page < 64; page += 2) {
    auto pieces = remapper->share(memory.data() + page * kPageSize, kPageSize, true);
    ASSERT_TRUE(pieces.has_value());
    shared += !pieces->empty();
  }
  EXPECT_EQ(shared, 10);
  EXPECT_TRUE(memory.filled());
}

TEST(RemapperPinned, Share_PagesPinnedByTheKernel_AreNotMoved) {
  if (!WriteGuard::open().can_move()) GTEST_SKIP() << "pinned pages are not known here";
  // io_uring's registered buffers are pinned pages: were they moved, the ring would write to memory
  // of nobody.
  Memory parameters(1);
  const long ring = syscall(SYS_io_uring_setup, 2, parameters.data());
  if (ring < 0) GTEST_SKIP() << "no io_uring";
  Memory memory(1200);
  memory.fill();
  iovec buffer{memory.data() + 100 * kPageSize, 300 * kPageSize};
  ASSERT_EQ(syscall(SYS_io_uring_register, ring, 0, &buffer, 1), 0);  // IORING_REGISTER_BUFFERS
  auto remapper = make_remapper();
  auto pieces = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(pieces.has_value());
  for (const Piece& piece : *pieces)
    EXPECT_TRUE(piece.end <= memory.address() + 100 * kPageSize || piece.begin >= memory.address() + 400 * kPageSize);
  EXPECT_GE(bytes_of(*pieces), 500 * kPageSize);
  EXPECT_TRUE(memory.filled());
  remapper->unshare(memory.data(), memory.size());
  EXPECT_TRUE(memory.filled());
  close(static_cast<int>(ring));
}

}  // namespace
}  // namespace nupa::memory::testing
