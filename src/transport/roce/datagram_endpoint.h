#pragma once
#include "transport/roce/endpoint.h"

namespace nupa::roce {

/// UD (IBTA 9.8.3): each request names its destination, and is done when its packet has left.
class DatagramEndpoint final : public transport::Endpoint, public EndpointChannel {
 public:
  /// `sources`: the port's addresses by GID index.
  DatagramEndpoint(Port& port, const LocalEnd& end, std::vector<GidEntry> sources, const WireSettings& settings)
      : EndpointChannel(port, end), sources_(std::move(sources)), settings_(settings) {
    end.wire->strangers.store(0);
    end.shared->carrier.store(static_cast<uint32_t>(segment::Carrier::kRoce));
    port.add(*this);
  }

  transport::Outcome execute(const transport::Request& request) override;
  Reach reach() override { return Reach::kMet; }
  const char* name() const override { return "roce"; }
  void withdraw() override { port_.remove(*this); }

  void deliver(Packet& packet, const io::UdpSocket::Received& from, int64_t now) override;
  void transmit(int64_t, Burst&, bool) override {}
  bool owes_answers() const override { return false; }
  void on_timer(int64_t) override {}
  void take_turn(SharedWindow&, int64_t, Burst&) override {}
  Peer* peer() override { return nullptr; }

 private:
  const std::vector<GidEntry> sources_;
  const WireSettings settings_;
  uint32_t psn_ = 0;
};

}  // namespace nupa::roce
