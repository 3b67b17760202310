// SPDX-License-Identifier: Apache-2.0
/// Allocations fail: the call fails with ENOMEM, and the program goes on.
#include <sys/resource.h>

#include <functional>

#include "../../support/allocation_steps.h"
#include "fixture.h"

namespace nupa::test {
namespace {

/// How many allocations of this thread still succeed; negative: all.
thread_local int g_left = -1;

bool count_allocation() {
  if (g_left == 0) return false;
  if (g_left > 0) --g_left;
  return true;
}

void allow(int allocations) {
  g_left = allocations;
  allocation_step = allocations < 0 ? nullptr : count_allocation;
}

TEST_F(Verbs, AllocationFails_EachCreateCall_FailsWithEnomem) {
  alignas(4096) static char memory[4096];
  ibv_mr* mr = reg(memory, sizeof memory);
  ASSERT_NE(mr, nullptr);
  // Refuses the first allocation, then the second, until a call gets through; then gives the object back.
  const auto starve = [](const char* name, const std::function<void*()>& make, const std::function<int(void*)>& undo) {
    int refused = 0;
    for (int allowed = 0; allowed < 200; ++allowed) {
      errno = 0;
      allow(allowed);
      void* made = make();
      const int error = errno;
      allow(-1);
      if (made != nullptr) {
        EXPECT_EQ(undo(made), 0) << name;
        EXPECT_GT(refused, 0) << name << " never allocated";
        return;
      }
      ++refused;
      EXPECT_EQ(error, ENOMEM) << name << " after " << allowed << " allocations";
    }
    ADD_FAILURE() << name << " never succeeded";
  };
  starve(
      "pd", [&] { return ibv_alloc_pd(context); },
      [](void* made) { return ibv_dealloc_pd(static_cast<ibv_pd*>(made)); });
  starve(
      "mw", [&] { return ibv_alloc_mw(pd, IBV_MW_TYPE_1); },
      [](void* made) { return ibv_dealloc_mw(static_cast<ibv_mw*>(made)); });
  ibv_td_init_attr td_attr{};
  starve(
      "td", [&] { return ibv_alloc_td(context, &td_attr); },
      [](void* made) { return ibv_dealloc_td(static_cast<ibv_td*>(made)); });
  ibv_parent_domain_init_attr parent_attr{};
  parent_attr.pd = pd;
  starve(
      "parent domain", [&] { return ibv_alloc_parent_domain(context, &parent_attr); },
      [](void* made) { return ibv_dealloc_pd(static_cast<ibv_pd*>(made)); });
  starve(
      "imported pd", [&] { return ibv_import_pd(context, pd->handle); },
      [](void* made) { return ibv_dealloc_pd(static_cast<ibv_pd*>(made)); });
  starve(
      "imported mr", [&] { return ibv_import_mr(pd, mr->handle); },
      [](void* made) { return ibv_unimport_mr(static_cast<ibv_mr*>(made)), 0; });
}

TEST_F(Verbs, CreateCq_AllocationFails_UsesNoNumber) {
  ibv_device_attr limits{};
  ASSERT_EQ(ibv_query_device(context, &limits), 0);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{0, before.rlim_max};
  // Rings lie in a shared file. Nothing is written meanwhile: the limit holds for the test's output too.
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  int refused = 0;
  for (int i = 0; i < limits.max_cq; ++i)
    refused += ibv_create_cq(context, limits.max_cqe, nullptr, nullptr, 0) == nullptr && errno == EFBIG ? 1 : 0;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(refused, limits.max_cq);
  ibv_cq* made = ibv_create_cq(context, 1, nullptr, nullptr, 0);
  ASSERT_NE(made, nullptr) << std::strerror(errno);
  EXPECT_EQ(ibv_destroy_cq(made), 0);
}

TEST_F(Verbs, Builder_AllocationFails_DropsTheRun) {
  alignas(4096) static char memory[4096];
  ibv_mr* mr = reg(memory, sizeof memory);
  ibv_qp* qp = make_builder_qp(IBV_QP_EX_WITH_RDMA_WRITE);
  connect(qp, qp);
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
  ASSERT_NE(ex, nullptr);
  constexpr int kRun = 50;  // more than a new builder has room for
  const auto run = [&](int allowed) {
    ex->wr_flags = IBV_SEND_SIGNALED;
    const ibv_sge list[2] = {{reinterpret_cast<uint64_t>(memory), 4, mr->lkey},
                             {reinterpret_cast<uint64_t>(memory), 4, mr->lkey}};
    allow(allowed);
    ibv_wr_start(ex);
    for (int i = 0; i < kRun; ++i) {
      ibv_wr_rdma_write(ex, mr->rkey, reinterpret_cast<uint64_t>(memory + 64));
      if (i % 2 == 0)
        ibv_wr_set_inline_data(ex, memory, 200);
      else
        ibv_wr_set_sge_list(ex, 2, list);
    }
    const int error = ibv_wr_complete(ex);
    allow(-1);
    return error;
  };
  int refused = 0, error = ENOMEM;
  for (int allowed = 0; allowed < 20 && error == ENOMEM; ++allowed) {
    error = run(allowed);
    refused += error == ENOMEM;
    if (error == ENOMEM) {
      EXPECT_TRUE(stays_empty(cq)) << allowed;
    }
  }
  EXPECT_EQ(error, 0);
  EXPECT_GT(refused, 1);
  for (int i = 0; i < kRun; ++i) EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace nupa::test
