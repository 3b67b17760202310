// SPDX-License-Identifier: Apache-2.0
/// PCI functions that are bound to vfio-pci, as far as a machine without one shows it. Guests have one:
/// tests/e2e/run_vms.py.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "base/unique_fd.h"
#include "fixture.h"
#include "transport/pool/medium/ivshmem_doorbell.h"
#include "transport/pool/medium/pool_memory.h"
#include "transport/pool/medium/vfio_function.h"

namespace nupa::pool {
namespace {

class PoolVfio : public ::testing::Test {
 protected:
  PoolVfio() {
    char name[] = "/tmp/nupa-vfio-test-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  ~PoolVfio() override { std::filesystem::remove_all(folder_); }

  std::string folder_;  ///< stands for that of a function in sysfs
};

TEST_F(PoolVfio, IsBound_ByTheNameOfTheDriver) {
  EXPECT_FALSE(VfioFunction::is_bound(folder_)) << "it has no driver";
  const std::string driver = folder_ + "/driver";
  std::filesystem::create_symlink("../../../bus/pci/drivers/virtio-pci", driver);
  EXPECT_FALSE(VfioFunction::is_bound(folder_));
  std::filesystem::remove(driver);
  std::filesystem::create_symlink("../../../bus/pci/drivers/vfio-pci", driver);
  EXPECT_TRUE(VfioFunction::is_bound(folder_));
}

TEST_F(PoolVfio, Open_WithoutIommu_NamesTheMissingLink) {
  const auto opened = VfioFunction::open(folder_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ENODEV);
  EXPECT_EQ(std::string(opened.error().what()), folder_ + "/iommu_group: no such link (vfio-pci needs an IOMMU)");
}

TEST_F(PoolVfio, Share_OfWhatIsNoFunction_Fails) {
  const base::UniqueFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto of_file = VfioFunction::share(getpid(), file.get());
  ASSERT_FALSE(of_file);
  EXPECT_EQ(of_file.error().code(), EINVAL) << of_file.error().what();
  const auto of_none = VfioFunction::share(getpid(), 1 << 20);
  ASSERT_FALSE(of_none);
  EXPECT_EQ(of_none.error().code(), EBADF) << of_none.error().what();
}

TEST_F(PoolVfio, Share_OfAProcessThatHasEnded_Fails) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto shared = VfioFunction::share(child, 3);
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.error().code(), ESRCH) << shared.error().what();
}

TEST_F(PoolVfio, Share_LeavesNoDescriptorBehind) {
  const auto count = [] {
    const std::filesystem::directory_iterator entries("/proc/self/fd");
    return std::distance(begin(entries), end(entries));
  };
  const base::UniqueFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto before = count();
  EXPECT_FALSE(VfioFunction::share(getpid(), file.get()));
  EXPECT_EQ(count(), before);
}

TEST_F(PoolVfio, IvshmemDoorbell_OfAFile_IsNotSupported) {
  const PoolFile file;
  const auto memory = PoolMemory::open(file.spec(0));
  ASSERT_TRUE(memory);
  const auto doorbell = open_ivshmem_doorbell(**memory);
  ASSERT_FALSE(doorbell);
  EXPECT_EQ(doorbell.error().code(), ENOTSUP);
}

}  // namespace
}  // namespace nupa::pool
