// SPDX-License-Identifier: Apache-2.0
/// Tests of management datagrams in a network namespace, where the standard port is free.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "net/udp_socket.h"
#include "own_network.h"
#include "transport/roce/endpoint.h"
#include "transport/roce/port/port.h"
#include "transport/roce/roce_transport.h"
#include "transport/roce/wire/wire.h"

namespace nupa::net::own_network_test {
namespace {

/// A process without anything but a transport.
class BareProcess final : public core::ProcessContext {
 public:
  host::Node& node() override { std::abort(); }
  host::PeerMemories& memories() override { std::abort(); }
  const std::vector<Gid>& host_addresses() const override { return addresses_; }
  bool host_is_covered(const core::Transport&) const override { return false; }
  void count_thread(bool) override {}
  void count_copying_threads(int) override {}
  std::shared_mutex& memory_moves() override { return moves_; }
  void try_waiting_requests() override {}
  bool has_queue_pair(uint32_t) const override { return true; }

 private:
  const std::vector<Gid> addresses_{};
  std::shared_mutex moves_;
};

class OwnNetworkMads : public OwnNetwork {
 protected:
  /// Sends one from `socket` to the carrier of slot 1. Returns it as the carrier shows it, and what comes back.
  static std::pair<core::MadDatagram, core::MadDatagram> exchange(bool standard, bool from_nupa) {
    core::MadDatagram shown, answer;
    roce::WireSettings settings;
    settings.standard = standard;
    BareProcess process;
    roce::RoceTransport transport(settings);
    EXPECT_EQ(transport.reserve(shm::kMinSlot), core::Transport::Slot::kFine);
    EXPECT_TRUE(transport.open(process));
    core::MadCarrier& carrier = *transport.mads();
    auto socket = roce::ManagementSocket::open(0, from_nupa);
    const base::UniqueFd arrived(eventfd(0, EFD_CLOEXEC));
    EXPECT_TRUE(carrier.listen([&](const core::MadDatagram& datagram) {
      shown = datagram;
      eventfd_write(arrived.get(), 1);
    }));
    core::MadDatagram question;
    question.bytes.fill(std::byte{7});
    question.local = gid("127.0.0.1");
    question.remote = {gid("127.0.0.1"), roce::kUdpPort};
    socket->send(question);
    EXPECT_TRUE(is_readable(arrived.get()));
    carrier.unlisten();
    question.remote.port = shown.from_port;
    EXPECT_TRUE(carrier.send(question));
    EXPECT_TRUE(is_readable(socket->fd()));
    socket->receive([&](const core::MadDatagram& datagram) { answer = datagram; });
    return {shown, answer};
  }
  static bool is_readable(int fd) {
    pollfd one{fd, POLLIN, 0};
    return poll(&one, 1, kSoonMs) == 1;
  }
};

TEST_F(OwnNetworkMads, Answer_ToANupaProcess_GoesToItsOwnPort) {
  within({}, [] {
    const auto [shown, answer] = exchange(false, true);
    EXPECT_TRUE(shown.of_nupa);
    EXPECT_NE(roce::kUdpPort, shown.from_port);
    EXPECT_EQ(shown.from_port, shown.remote.port);
    EXPECT_TRUE(answer.of_nupa);
  });
}

TEST_F(OwnNetworkMads, Answer_ToAStandardPeer_GoesToTheStandardPort) {
  within({}, [] {
    const auto [shown, answer] = exchange(false, false);
    EXPECT_FALSE(shown.of_nupa);
    EXPECT_EQ(roce::kUdpPort, shown.remote.port);
    EXPECT_TRUE(answer.of_nupa);
  });
}

TEST_F(OwnNetworkMads, Answer_StandardModeOnly_TreatsNupaProcessesAsStandardPeers) {
  within({}, [] {
    const auto [shown, answer] = exchange(true, true);
    EXPECT_FALSE(shown.of_nupa);
    EXPECT_EQ(roce::kUdpPort, shown.remote.port);
    EXPECT_NE(roce::kUdpPort, shown.from_port);
    EXPECT_FALSE(answer.of_nupa) << "it is sent without NUPA's mark";
  });
}

TEST_F(OwnNetworkMads, OpenHostSocket_TwoProcesses_OneReceivesForTheHost) {
  within({}, [] {
    BareProcess process;
    roce::RoceTransport first({}), second({});
    ASSERT_EQ(second.reserve(shm::kMinSlot + 1), core::Transport::Slot::kFine);
    ASSERT_TRUE(second.open(process));
    EXPECT_FALSE(second.receives_for_host());
    EXPECT_TRUE(second.open_host_socket());
    ASSERT_EQ(first.reserve(shm::kMinSlot), core::Transport::Slot::kFine);
    ASSERT_TRUE(first.open(process));
    EXPECT_TRUE(first.receives_for_host());
    const auto refused = second.open_host_socket();
    ASSERT_FALSE(refused);
    EXPECT_EQ(EADDRINUSE, refused.error().code());
  });
}

}  // namespace
}  // namespace nupa::net::own_network_test
