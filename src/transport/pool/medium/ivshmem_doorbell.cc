// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/ivshmem_doorbell.h"

#include <cerrno>
#include <string>
#include <utility>

#include "progress/wake_up.h"
#include "transport/pool/medium/vfio_function.h"

namespace nupa::pool {
namespace {

// Registers of BAR 0.
constexpr uint32_t kPosition = 8;   ///< the number of this guest at the device
constexpr uint32_t kDoorbell = 12;  ///< store: guest << 16 | vector

class IvshmemDoorbell final : public Doorbell {
 public:
  IvshmemDoorbell(std::string folder, std::shared_ptr<VfioFunction> function)
      : folder_(std::move(folder)), function_(std::move(function)) {}
  ~IvshmemDoorbell() override {
    if (listens_) static_cast<void>(function_->listen(vector_, -1));
    event_.close();
  }

  DoorbellLine line() const override {
    DoorbellLine line;
    line.kind = DoorbellKind::kIvshmem;
    line.vector = vector_;
    line.guest = guest_;
    line.descriptor = function_ == nullptr ? 0 : static_cast<uint32_t>(function_->descriptor());
    return line;
  }
  Result<void> start(const DoorbellPlace& place) override {
    if (const auto found = find_function(place); !found) return found;
    vector_ = place.record;
    guest_ = function_->load(kPosition);
    if (vector_ >= function_->vectors())
      return fail(ENOSPC, folder_, " has ", function_->vectors(), " vectors, one for each process (vectors=N of QEMU)");
    if (auto opened = event_.open(); !opened) return opened;
    auto listens = function_->listen(vector_, event_.fd());
    listens_ = listens.has_value();
    return listens;
  }
  int fd() const override { return event_.fd(); }
  void take() override { event_.take_all(); }
  // All that share the memory are at the same device.
  bool reaches(const DoorbellLine& peer, const HostLine&, const HostLine&) const override {
    return peer.kind == DoorbellKind::kIvshmem;
  }
  void ring(const DoorbellLine& peer, Line*) override {
    constexpr int kGuestShift = 16;
    function_->store(kDoorbell, peer.guest << kGuestShift | (peer.vector & 0xffff));
  }

 private:
  /// The function is open in this process, or in one of its neighbours.
  Result<void> find_function(const DoorbellPlace& place) {
    if (function_ != nullptr) return {};
    for (const DoorbellNeighbour& neighbour : place.neighbours) {
      if (neighbour.line.kind != DoorbellKind::kIvshmem) continue;
      auto shared = VfioFunction::share(static_cast<pid_t>(neighbour.pid), static_cast<int>(neighbour.line.descriptor));
      if (!shared) continue;
      function_ = std::move(*shared);
      return {};
    }
    // Its owner may have ended meanwhile.
    auto opened = VfioFunction::open(folder_);
    if (!opened) return tl::unexpected(opened.error());
    function_ = std::move(*opened);
    return {};
  }

  const std::string folder_;
  std::shared_ptr<VfioFunction> function_;
  progress::WakeUp event_;
  uint32_t vector_ = 0;
  uint32_t guest_ = 0;
  bool listens_ = false;
};

}  // namespace

Result<std::unique_ptr<Doorbell>> open_ivshmem_doorbell(const PoolMemory& memory) {
  const std::string& folder = memory.pci_folder();
  if (!memory.is_ivshmem()) return fail(ENOTSUP, "NUPA has no doorbell for the PCI function ", memory.spec().name);
  if (!VfioFunction::is_bound(folder))
    return fail(ENOTSUP, memory.spec().name, " is not bound to vfio-pci (docs/guides/cxl-and-pcie.md)");
  if (memory.function() != nullptr && memory.function()->vectors() == 0)
    return fail(ENOTSUP, memory.spec().name, " has no interrupts (ivshmem-doorbell of QEMU has)");
  return std::make_unique<IvshmemDoorbell>(folder, memory.function());
}

}  // namespace nupa::pool
