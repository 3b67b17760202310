// SPDX-License-Identifier: Apache-2.0
// A pool to which another host writes anything: its tables, the inbox of this process, the bells, credits and records
// that nearly keep the rules. The process of this host takes its turns, and neither reads outside of the pool, nor
// loses or invents a completion, nor waits for ever.
#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "core/seam/group_address.h"
#include "guarded_host.h"
#include "targets.h"
#include "transport/pool/datagram_endpoint.h"
#include "transport/pool/endpoint.h"
#include "transport/pool/medium/directory.h"
#include "transport/pool/medium/open_pool.h"

namespace nupa::fuzz {
namespace {

using pool::Line;

constexpr uint32_t kRingLines = 64;
constexpr uint32_t kQkey = 0x11111111;
constexpr uint16_t kUs = 0, kThem = 1;
constexpr uint32_t kOurSlot = 1, kTheirSlot = 2;
constexpr uint32_t kConnected = shm::number_of(kOurSlot, 1);
constexpr uint32_t kUnreliable = shm::number_of(kOurSlot, 2);
constexpr uint32_t kDatagrams = shm::number_of(kOurSlot, 3);
constexpr uint32_t kFirstSequence = 0xfffe;

pool::Geometry geometry_of_pool() {
  pool::HeaderLine header;
  header.hosts = 2;
  header.bytes = pool::kTerritoriesOffset + header.hosts * 2 * pool::kTerritoryAlignment;
  header.block_bytes = 8192;
  header.ring_lines = kRingLines;
  header.records = 2;
  return pool::Geometry(header);
}

int64_t g_now_ns = 0;
int64_t clock_of_target() { return g_now_ns; }

/// The pool's bytes. A block of their own, so that a sanitizer sees each step beside them.
class FuzzMemory {
 public:
  /// The one process of the host needs no lock.
  struct Lock {
    Lock(int, uint16_t) {}
    static Result<void> lock() { return {}; }
    static bool try_lock() { return true; }
    static void unlock() {}
    static bool take_record(uint16_t) { return true; }
    static bool is_taken(uint16_t) { return false; }
    bool borrow_block(uint32_t) { return true; }
    void return_block(uint32_t) {}
    bool is_borrowed(uint32_t) { return false; }
  };
  explicit FuzzMemory(Line* lines) : lines_(lines) { spec_.host = kUs; }
  const pool::Spec& spec() const { return spec_; }
  static pool::Caches caches() { return pool::Caches::kCoherent; }
  Line* lines() const { return lines_; }
  static int fd() { return -1; }
  static uint64_t file_device() { return 1; }
  static uint64_t file_inode() { return 1; }
  static bool is_lost() { return false; }
  static std::array<uint8_t, 16> boot_id() { return {1}; }
  uint64_t random_key() { return ++keys_ << 33; }
  static pool::ProcessLine describe_process(uint64_t instance, uint64_t incarnation) {
    pool::ProcessLine line;
    line.instance = instance;
    line.incarnation = incarnation;
    return line;
  }

 private:
  Line* const lines_;
  pool::Spec spec_;
  uint64_t keys_ = 0;
};

Result<std::unique_ptr<pool::Doorbell>> open_doorbell(const FuzzMemory&) { return fail(ENOTSUP, "no doorbell"); }

/// A queue pair's core side, which does what the core does after a failure.
struct QueuePair {
  QueuePair(uint32_t number, QpType type) {
    host.identity() = {number, type, {}, true, &shared, &statistics};
    host.identity().cap = {.max_send_wr = 8, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1};
    shared.state.store(shm::pack_state(1, QpState::kRts));
    shared.qkey.store(kQkey);
  }
  shm::QpShared shared{};
  shm::StatisticsShared statistics{};
  GuardedHost host;
  std::optional<pool::ConnectedEndpoint> endpoint;
  bool has_stopped = false;
};

class Pools {
 public:
  Pools() {
    g_now_ns = 1'000'000'000;
    pool_ = std::make_unique<pool::OpenPool<pool::Coherent, FuzzMemory>>(
        std::make_unique<FuzzMemory>(lines_.get()), geometry_, pool::Coherent(),
        pool::PoolClock{clock_of_target, [](int64_t ns) { g_now_ns += ns; }});
    pool::Description description;
    description.slots = {kOurSlot};
    description.gids = {pool_->gid_of(kUs)};
    auto opened = pool::Engine::open(*pool_, description, clock_of_target);
    require(static_cast<bool>(opened), "a process joins an empty pool");
    engine_ = std::move(*opened);
    engine_->set_mad_handler([this](const core::MadDatagram&) { ++mads_; });
    datagrams_.host.identity().type = QpType::kUd;
    GidEntry entry;
    entry.gid = pool_->gid_of(kUs);
    datagram_endpoint_.emplace(*engine_, datagrams_.host, std::vector<GidEntry>{entry}, pool::GroupReach::kAll);
  }
  ~Pools() {
    for (QueuePair* const each : {&reliable_, &unreliable_}) {
      if (!each->endpoint) continue;
      each->endpoint->stop();
      each->endpoint->withdraw();
      require(each->host.completed == each->host.requests, "each request ends");
      require(!each->host.holds_receive(), "an ended queue pair holds no receive");
      each->endpoint.reset();
    }
    datagram_endpoint_->withdraw();
    datagram_endpoint_.reset();
    constexpr int64_t kLonger = 2'000'000'000;
    for (int i = 0; engine_->keeps_datagrams(); ++i) {
      require(i < 4, "a datagram waits for its channel, but not for ever");
      g_now_ns += kLonger;
      engine_->take_turn(progress::Receiver::kThread);
    }
    engine_.reset();
    pool_.reset();
  }

  void run(Input& input) {
    // Beyond these, an input only takes longer.
    constexpr int kMostSteps = 400;
    for (int step = 0; step < kMostSteps && !input.used_up(); ++step) {
      switch (input.below(12)) {
        case 0:
          write_line(input);
          break;
        case 1:
          write_word(input);
          break;
        case 2:
          appear(input);
          break;
        case 3:
          offer(input);
          break;
        case 4:
        case 5:
        case 6:
          write_record(input);
          break;
        case 7:
          write_header(input);
          break;
        case 8:
          post(input);
          break;
        case 9:
          send_datagram(input);
          break;
        case 10:
          receive(input);
          break;
        default:
          break;
      }
      turns(1 + input.below(3), input);
    }
    for (int i = 0; i < 50; ++i) turns(2, input);
  }

 private:
  Line* at(uint64_t offset) { return lines_.get() + offset / pool::kLineBytes; }
  Line* our_record(uint32_t line) { return at(geometry_.record(kUs, engine_->self().record)) + line; }

  /// A line that the other host writes: of its page, its tables and blocks, of our bells, or of the inbox for it.
  Line* any_line(Input& input) {
    switch (input.below(6)) {
      case 0:
        return at(geometry_.host_page(kThem)) + input.below(4);
      case 1:
        return at(geometry_.record(kThem, static_cast<uint16_t>(input.below(2)))) + input.u16() % 512;
      case 2:
        return at(geometry_.territory(kThem)) + input.u16() % (geometry_.territory_bytes() / pool::kLineBytes);
      case 3:
        return our_record(pool::kBellLines + kThem);
      default:
        return inbox() == nullptr ? at(geometry_.host_page(kThem)) : inbox() + input.below(kRingLines + 1);
    }
  }
  void write_line(Input& input) {
    Line* const line = any_line(input);
    const auto bytes = input.bytes(pool::kLineBytes);
    std::memcpy(static_cast<void*>(line), bytes.data(), bytes.size());
  }
  void write_word(Input& input) {
    Line* const line = any_line(input);
    const uint64_t word = input.u64();
    line->words[input.below(pool::kLineWords)] = word;
  }

  /// A process of the other host that keeps the rules.
  void appear(Input& input) {
    pool::HostLine host;
    host.incarnation = 7;
    host.boot_id = {2};
    them_.take_host(host);
    instance_ = 1 + input.below(4);
    pool::Description description;
    description.slots = {kTheirSlot};
    description.gids = {pool_->gid_of(input.below(8) == 0 ? kUs : kThem)};
    them_.begin_process(static_cast<uint16_t>(input.below(2)), FuzzMemory::describe_process(instance_, 7), description,
                        1);
    them_.beat(g_now_ns);
    ring();
    position_ = 0;
    if (!reliable_.endpoint) connect(reliable_);
    if (!unreliable_.endpoint) connect(unreliable_);
  }
  void connect(QueuePair& pair) {
    QpAttr attr;
    attr.dest_qp_num = shm::number_of(kTheirSlot, shm::index_of(pair.host.number()));
    attr.av.is_global = true;
    attr.av.dgid = pool_->gid_of(kThem);
    attr.rq_psn = attr.sq_psn = kFirstSequence;
    attr.timeout = 8;
    attr.retry_cnt = 1;
    attr.rnr_retry = 2;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4;
    pair.endpoint.emplace(*engine_, pair.host, attr, engine_->claim_link(attr.av, attr.dest_qp_num));
    pair.endpoint->set_attributes(attr);
    pair.endpoint->start(attr.sq_psn);
  }
  void ring() { ++our_record(pool::kBellLines + kThem)->words[0]; }

  void offer(Input& input) {
    if (instance_ == 0) return;
    pool::OfferLine line;
    line.key = ++offers_;
    line.peer_instance = engine_->self().instance;
    line.peer_host = kUs;
    line.peer_record = engine_->self().record;
    line.offset = geometry_.block(kThem, input.below(2));
    line.lines = kRingLines;
    them_.offer(input.below(2), line);
    ring();
  }

  /// The inbox that this process offers the other host; null: there is none.
  Line* inbox() {
    for (uint32_t i = 0; i < pool::kMaxChannels; ++i) {
      pool::OfferLine line;
      std::memcpy(static_cast<void*>(&line), our_record(pool::kOfferLines + i), sizeof line);
      if (line.key != 0 && line.peer_host == kThem && geometry_.is_inbox(kUs, line.offset, line.lines))
        return at(line.offset);
    }
    return nullptr;
  }
  /// Publishes a header line at the place where the next one is expected.
  void publish(pool::Header header, const std::vector<std::byte>& payload) {
    Line* const ring_lines = inbox() == nullptr ? nullptr : inbox() + 1;
    if (ring_lines == nullptr) return;
    for (size_t at = 0; at < payload.size(); at += pool::kLineBytes)
      std::memcpy(static_cast<void*>(ring_lines + (position_ + 1 + at / pool::kLineBytes) % kRingLines), &payload[at],
                  std::min(pool::kLineBytes, payload.size() - at));
    Line line;
    line.words[0] = pool::ring::word_of(pool::ring::turn_at(position_, kRingLines), header.payload_lines, header.tag);
    std::memcpy(&line.words[1], header.bytes, sizeof header.bytes);
    ring_lines[position_ % kRingLines] = line;
    position_ += 1 + header.payload_lines;
  }
  void write_header(Input& input) {
    pool::Header header;
    header.tag = input.u16();
    header.payload_lines = static_cast<uint16_t>(input.below(20));
    const auto bytes = input.bytes(sizeof header.bytes);
    std::memcpy(header.bytes, bytes.data(), bytes.size());
    publish(header, {});
  }
  /// A record whose fields are the input's, and whose lengths nearly fit together.
  void write_record(Input& input) {
    pool::Header header;
    if (input.below(4) == 0) {
      std::array<uint64_t, 2> words{};
      for (uint64_t& word : words)
        word = pool::word_of({input.below(4) == 0 ? kUnreliable : kConnected,
                              static_cast<uint16_t>(kFirstSequence + input.below(8)),
                              static_cast<pool::Outcome>(input.below(6)), input.u8(), input.u16()});
      pool::encode_answers({words.data(), 1 + input.below(2)}, &header);
      return publish(header, {});
    }
    static constexpr uint32_t kNumbers[] = {kConnected, kUnreliable, kDatagrams, core::kGroupQpn, 5};
    pool::Record record;
    record.kind = static_cast<pool::RecordKind>(1 + input.below(pool::kLastKind));
    record.flags = input.u8() & 31;
    const uint8_t traits = input.u8();
    record.traits = traits & 15;
    record.credits = traits >> 4;
    record.qp_num = kNumbers[input.below(std::size(kNumbers))];
    record.source_qp = shm::number_of(kTheirSlot, shm::index_of(record.qp_num));
    record.sequence = static_cast<uint16_t>(kFirstSequence + input.below(8));
    record.ack = static_cast<uint16_t>(kFirstSequence + input.below(8));
    record.length = input.u16() % 900;
    record.rkey = input.below(8) == 0 ? input.u32() : GuardedHost::kRemote;
    record.address = GuardedHost::base_of(GuardedHost::kRemote) + input.u16();
    record.offset = input.below(3) * 512;
    record.total = input.below(2) == 0 ? record.offset + record.length : input.u16();
    record.operation = static_cast<core::AtomicOp>(input.below(4));
    record.operand = input.u64();
    record.qkey = kQkey;
    if (record.kind == pool::RecordKind::kMad) record.length = pool::kMadPayloadBytes;
    if (record.kind == pool::RecordKind::kRead || record.kind >= pool::RecordKind::kAtomic)
      if (record.kind != pool::RecordKind::kDatagram && record.kind != pool::RecordKind::kMad) record.length = 0;
    const auto payload = input.bytes(record.length);
    pool::encode(record, payload.data(), &header);
    publish(header, header.payload_lines > 0 ? payload : std::vector<std::byte>{});
  }

  void post(Input& input) {
    QueuePair& pair = input.below(4) == 0 ? unreliable_ : reliable_;
    if (!pair.endpoint || pair.has_stopped || pair.host.requests - pair.host.completed >= 8) return;
    static constexpr Opcode kOperations[] = {Opcode::kSend,     Opcode::kSendWithImm, Opcode::kRdmaWrite,
                                             Opcode::kRdmaRead, Opcode::kFetchAdd,    Opcode::kRdmaWriteWithImm};
    SendWr wr;
    wr.opcode = kOperations[input.below(&pair == &unreliable_ ? 3 : std::size(kOperations))];
    wr.wr_id = pair.host.requests;
    wr.rkey = 1;
    const bool is_answered = core::writes_own_list(wr.opcode);
    const uint32_t key = is_answered ? GuardedHost::kResults : GuardedHost::kSource;
    const uint32_t length = wr.opcode == Opcode::kFetchAdd ? 8 : input.u16() % 2000;
    const Sge sge{GuardedHost::base_of(key), length, key};
    wr.sg_list = &sge;
    wr.num_sge = length > 0 ? 1 : 0;
    if (!pair.host.try_enter()) return;
    const auto position = static_cast<uint32_t>(pair.host.requests++);
    pair.endpoint->post({wr, nullptr, nullptr, 0, length, position, WcStatus::kSuccess});
    pair.endpoint->send();
    pair.host.leave();
  }
  void send_datagram(Input& input) {
    AddressVector vector;
    vector.is_global = true;
    vector.dgid = pool_->gid_of(kThem);
    SendWr wr;
    wr.remote_qpn = shm::number_of(kTheirSlot, 3);
    wr.remote_qkey = kQkey;
    const auto bytes = input.bytes(input.below(200));
    const base::Piece piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    if (!datagrams_.host.try_enter()) return;
    datagram_endpoint_->send({wr, &vector, &piece, bytes.empty() ? 0u : 1u, bytes.size(), 0, WcStatus::kSuccess});
    datagrams_.host.leave();
  }
  void receive(Input& input) {
    static constexpr uint32_t kRoom = 1024;
    QueuePair* const pairs[] = {&reliable_, &unreliable_, &datagrams_};
    pairs[input.below(3)]->host.post_receive(
        {{GuardedHost::base_of(GuardedHost::kReceives), kRoom, GuardedHost::kReceives}});
  }

  void turns(uint32_t number, Input& input) {
    static constexpr int64_t kSteps[] = {1'000, 60'000'000, 300'000, 2'100'000'000};
    for (uint32_t i = 0; i < number; ++i) {
      g_now_ns += kSteps[input.below(16) % 8 < 6 ? 0 : input.below(std::size(kSteps))];
      engine_->take_turn(input.below(4) == 0 ? progress::Receiver::kPoller : progress::Receiver::kThread);
      for (QueuePair* const each : {&reliable_, &unreliable_}) {
        if (!each->endpoint || !each->host.failed || each->has_stopped) continue;
        each->has_stopped = true;
        each->shared.state.store(shm::pack_state(1, QpState::kErr));
        each->endpoint->stop();
        require(each->host.completed == each->host.requests, "a queue pair that failed has no request");
      }
    }
  }

  const pool::Geometry geometry_ = geometry_of_pool();
  std::unique_ptr<Line[]> lines_ = std::make_unique<Line[]>(geometry_.bytes() / pool::kLineBytes);
  pool::Directory<pool::Coherent> them_{pool::Coherent(), lines_.get(), geometry_, kThem};
  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<pool::Engine> engine_;
  QueuePair reliable_{kConnected, QpType::kRc};
  QueuePair unreliable_{kUnreliable, QpType::kUc};
  QueuePair datagrams_{kDatagrams, QpType::kUd};
  std::optional<pool::DatagramEndpoint> datagram_endpoint_;
  uint64_t instance_ = 0;  ///< of the other host's process
  uint64_t offers_ = 0;
  uint64_t position_ = 0;  ///< in the inbox
  uint64_t mads_ = 0;
};

}  // namespace

void pool_content(const uint8_t* data, size_t length) {
  Input input(data, length);
  Pools().run(input);
}

}  // namespace nupa::fuzz
