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
  Datagram(Window& window, const transport::LocalQp& qp) : window_(window), qp_(qp) {}

  transport::Outcome execute(const transport::Request& request) override;
  Reach reach() override { return Reach::kMet; }
  const char* name() const override { return "window"; }

 private:
  void deliver(Target& target, const transport::Request& request, uint32_t qkey);
  void deliver_multicast(const transport::Request& request, uint32_t qkey);
  Target* find(uint32_t qpn, const AddressVector& vector);

  /// Destinations remembered; beyond this many all are looked up anew.
  static constexpr size_t kMaxTargets = 1024;

  Window& window_;
  transport::LocalQp qp_;
  uint32_t last_qpn_ = 0;
  Target* last_ = nullptr;
  std::unordered_map<uint32_t, std::unique_ptr<Target>> targets_;
};

}  // namespace nupa::window
