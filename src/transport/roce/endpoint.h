#pragma once
#include <atomic>
#include <optional>

#include "segment/send_lock.h"
#include "transport/roce/connection.h"
#include "transport/roce/introduction.h"
#include "transport/roce/port.h"
#include "transport/transport.h"

namespace nupa::roce {

/// What the core knows of a queue pair that goes over the wire.
struct LocalEnd {
  Host* host = nullptr;
  segment::QpShared* shared = nullptr;
  segment::WireShared* wire = nullptr;  ///< for people
  uint32_t qp_num = 0;
  QpType type = QpType::kRc;
  QpCap cap;
  std::vector<Rail> rails;    ///< of connections; the first has the address that the program chose
  uint32_t max_datagram = 0;  ///< UD: bytes of a message, which is one packet
  bool hears_itself = true;   ///< UD: gets its own datagrams to groups that it is a member of
};

struct WireSettings {
  bool standard = false;  ///< nothing but the standard is spoken, every peer is at port 4791
  std::string_view congestion = "tolerant";
  uint32_t source_ports = 1;  ///< UDP ports that packets leave from
  bool unchecked = false;     ///< no invariant CRC, if the other end wants none either
};

/// What both kinds of endpoint are to the port.
class EndpointChannel : public Channel {
 public:
  EndpointChannel(Port& port, const LocalEnd& end) : port_(port), end_(end), lock_(end.shared->send_lock) {}
  uint32_t number() const override { return end_.qp_num; }
  bool enter() override;
  void leave() override { lock_.unlock(); }
  int64_t deadline() const override { return deadline_.at(); }
  void count_stranger() override { end_.wire->strangers.fetch_add(1, std::memory_order_relaxed); }

 protected:
  void set_deadline(int64_t deadline) {
    deadline_.set(deadline);
    if (deadline != INT64_MAX) port_.expect(deadline);
  }
  /// The state lets packets in.
  bool receives() const;

  Port& port_;
  const LocalEnd end_;

 private:
  segment::SendLock lock_;
  Deadline deadline_;
};

/// RC, UC and XRC.
class ConnectedEndpoint final : public transport::WireEndpoint, public EndpointChannel {
 public:
  /// `attr`: as given on the way to RTR.
  ConnectedEndpoint(Port& port, const LocalEnd& end, const QpAttr& attr, const Gid& peer, const WireSettings& settings);
  ~ConnectedEndpoint() override;

  void post(const SendWr& wr, uint32_t position) override { requester_->post(wr, position); }
  void send() override;
  void start(uint32_t sq_psn) override;
  void set_attributes(const QpAttr& attr) override;
  void pause(bool paused) override;
  bool drained() const override { return !requester_ || requester_->drained(); }
  void flush() override;
  void stop() override;
  void withdraw() override { port_.remove(*this); }
  const char* name() const override { return "roce"; }

  void deliver(Packet& packet, const io::UdpSocket::Received& from, int64_t now) override;
  void transmit(int64_t now, Burst& burst, bool answers) override;
  bool owes_answers() const override { return responder_.has_output(); }
  void on_timer(int64_t now) override;
  void take_turn(SharedWindow& window, int64_t now, Burst& burst) override;
  void leave_lines() override;
  const std::byte* next_place() const override { return next_place_.load(std::memory_order_relaxed); }
  Peer* peer() override { return process_.get(); }
  bool takes_unchecked() const override { return settings_.unchecked; }

 private:
  /// This queue pair's part of a window that it shares.
  struct Share {
    SharedWindow* window = nullptr;
    uint64_t held = 0;  ///< bytes
    bool in_line = false;
  };
  void choose_port(bool standard);
  /// Sends requests, as far as there is room for them. True: there is more to send at once. `turn`: it was its turn.
  bool transmit_requests(int64_t now, Burst& burst, const SharedWindow* turn);
  void take_room(Share& share, const SharedWindow* turn);
  /// Gives back what is not under way any more.
  void settle(Share& share, uint64_t used);
  void settle();
  void wait_in_line(Share& share, int64_t now, const SharedWindow* turn);
  void leave_line(Share& share);
  /// There may be room for them now.
  void tell_waiters();
  void aim(uint32_t path, const Rail& rail, const Gid& to);
  void aim(Burst& burst);
  void introduce(int64_t now, Burst& burst);
  /// When the port has to look here again: at once if there is `more` to send, else by what each part waits for.
  void set_next(int64_t now, bool more);
  /// Both ends know each other's rails.
  void take_paths();
  /// The path that a packet came by; -1: it is not of this connection.
  int path_of(const io::UdpSocket::Received& from) const;
  /// Tells the observers.
  void publish();

  const WireSettings settings_;
  const Gid peer_;
  RequesterOptions requester_options_;
  Responder responder_;
  std::optional<Requester> requester_;  ///< from RTS on
  Patience patience_;
  Introduction introduction_;
  std::array<Destination, kMaxPaths> destinations_;
  std::shared_ptr<Peer> process_;  ///< at the other end
  bool shares_windows_ = false;
  Share sends_;
  Share responses_;
  uint32_t paths_ = 1;
  int64_t answers_by_ = INT64_MAX;  ///< when answers that were not sent yet have to leave
  std::atomic<const std::byte*> next_place_{nullptr};
  bool heard_ = false;     ///< something came from the peer
  bool standard_ = false;  ///< the peer is (or, while nothing was heard, may be) at the standard's port
};

}  // namespace nupa::roce
