#pragma once
#include <memory>
#include <unordered_map>

#include "transport/window/target.h"
#include "transport/window/window.h"

namespace nupa::window {

/// The initiator's side of a UD queue pair (IBTA 9.8.3): every request names its own destination, a datagram that
/// cannot be delivered is lost without a word.
class Datagram final : public transport::Endpoint {
 public:
  /// `elsewhere`: who sends what goes to no process of this host's runtime directory; may be null.
  Datagram(Window& window, const transport::LocalQp& qp, std::unique_ptr<transport::Endpoint> elsewhere = nullptr)
      : window_(window),
        qp_(qp),
        own_gids_(window.node().segment().tables().header->devices[qp.shared->device].gids),
        elsewhere_(std::move(elsewhere)) {}

  transport::Outcome execute(const transport::Request& request) override;
  Reach reach() override { return Reach::kMet; }
  const char* name() const override { return "shm"; }
  void withdraw() override {
    if (elsewhere_) elsewhere_->withdraw();
  }

 private:
  /// The GID that the request's address handle names, as the source.
  const Gid& source_of(const transport::Request& request) const;
  void deliver(Target& target, const transport::Request& request, uint32_t qkey);
  void deliver_multicast(const transport::Request& request, uint32_t qkey);
  /// A destination under the address that it was found by: another one may not lead to it.
  struct Known {
    std::unique_ptr<Target> target;  ///< null: it is elsewhere
    Gid gid;
    bool is_global = false;
    bool lies_at(const AddressVector& vector) const {
      return is_global == vector.is_global && (!is_global || gid == vector.dgid) &&
             (target == nullptr || target->peer().alive());
    }
  };
  Target* find(uint32_t qpn, const AddressVector& vector);

  /// Destinations remembered; beyond this many all are looked up anew.
  static constexpr size_t kMaxTargets = 1024;

  Window& window_;
  transport::LocalQp qp_;
  const Gid* own_gids_;  ///< of its device, segment::kMaxGids
  const std::unique_ptr<transport::Endpoint> elsewhere_;
  uint32_t last_qpn_ = 0;
  Known* last_ = nullptr;
  std::unordered_map<uint32_t, Known> targets_;
};

}  // namespace nupa::window
