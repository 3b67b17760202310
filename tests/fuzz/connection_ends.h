// SPDX-License-Identifier: Apache-2.0
#pragma once
/// For connection_target.cc: three communication managers with a program each, their messages on the way, and the time.
#include "../sim/connection_world.h"
#include "input.h"

namespace nupa::fuzz {

struct Letter {
  size_t from = 0;
  uint32_t life = 0;
  size_t to = 0;
  cm::Mad mad{};
};

class ConnectionEnds {
 protected:
  using Program = cm::testing::Program;
  static constexpr size_t kEnds = 3;
  static constexpr size_t kMostUnderWay = 64;  ///< what is more is lost
  static constexpr uint32_t kMostAnswers = 3;  ///< one for each connection that it ends, and its own

  explicit ConnectionEnds(bool near_ends) : near_(near_ends) {
    common_.broken = [](const std::string& rule) { require(false, rule.c_str()); };
    for (size_t i = 0; i < kEnds; ++i) start(i);
  }

  class Output final : public cm::MadOutput {
   public:
    Output(ConnectionEnds& ends, size_t index) : ends_(ends), index_(index) {}
    void send(const cm::Way& way, const cm::Mad& mad) override { ends_.send(index_, way, mad); }

   private:
    ConnectionEnds& ends_;
    size_t index_;
  };
  struct End {
    std::unique_ptr<Output> output;
    std::unique_ptr<Program> program;
    uint32_t life = 0;
  };

  void start(size_t index) {
    End& end = ends_[index];
    ++end.life;
    end.output = std::make_unique<Output>(*this, index);
    const auto prefix = static_cast<uint32_t>(index + 1) << cm::ConnectionEngine::kIdBits;
    end.program = std::make_unique<Program>(common_, prefix, end.life * 1000, *end.output);
    end.program->admits = [this] { return admits_; };
  }

  cm::Way way(size_t from, size_t to) const {
    cm::Way way;
    way.local = cm::testing::World::gid_of(from);
    way.remote = cm::testing::World::gid_of(to);
    if (near_) {
      way.slot = static_cast<uint32_t>(to + 1);
      way.instance = ends_[to].life;
    }
    return way;
  }
  void send(size_t from, const cm::Way& way, const cm::Mad& mad) {
    const std::optional<cm::Envelope> envelope = cm::read_envelope(mad);
    require(envelope.has_value(), "messages can be read");
    require(!asked_ || cm::testing::answers(*asked_, envelope->attribute), "a message has an answer that is for it");
    require(++sent_ <= kMostAnswers || !asked_, "a message has few answers");
    const size_t to = way.remote.raw[15] - 1u;
    require(to < kEnds, "messages have a receiver");
    under_way_.push_back({from, ends_[from].life, to, mad});
    if (under_way_.size() > kMostUnderWay) {
      under_way_.erase(under_way_.begin());
      whole_ = false;
    }
    last_ = under_way_.back();
  }
  void deliver(const Letter& letter) {
    cm::Way from = way(letter.to, letter.from);
    if (near_) from.instance = letter.life;
    const std::optional<cm::Envelope> envelope = cm::read_envelope(letter.mad);
    asked_ = envelope ? std::optional(envelope->attribute) : std::nullopt;
    sent_ = 0;
    const bool taken = ends_[letter.to].program->engine.receive(letter.mad, from, now_);
    require(taken == envelope.has_value(), "what can be read is taken");
    asked_.reset();
  }
  Letter take(size_t at) {
    const Letter letter = under_way_[at];
    under_way_.erase(under_way_.begin() + static_cast<ptrdiff_t>(at));
    return letter;
  }

  void pass(int64_t nanoseconds) {
    now_ += nanoseconds;
    for (const End& end : ends_) {
      end.program->engine.on_timer(now_);
      require(end.program->engine.deadline() > now_, "a timer that went off is set anew");
    }
  }
  int64_t next() const {
    int64_t when = INT64_MAX;
    for (const End& end : ends_) when = std::min(when, end.program->engine.deadline());
    return when;
  }
  /// The network as it should be.
  void flow() {
    for (int letters = 0; !under_way_.empty(); ++letters) {
      require(letters < 1000, "answers come to an end");
      deliver(take(0));
    }
  }
  /// Until nothing is on its way and no timer runs.
  void settle(bool delivers) {
    for (int hops = 0;; ++hops) {
      require(hops < 20'000, "what waits comes to an end");
      if (delivers) flow();
      if (next() == INT64_MAX) return;
      pass(std::max<int64_t>(next() - now_, 0));
    }
  }

  const bool near_;  ///< processes of one host
  cm::testing::Common common_;
  End ends_[kEnds];
  std::vector<Letter> under_way_;
  Letter last_;  ///< what forged ones look like
  bool admits_ = true;
  bool whole_ = true;  ///< nothing was lost, and nobody died
  int64_t now_ = 1'000'000;

 private:
  std::optional<cm::Attribute> asked_;
  uint32_t sent_ = 0;
};

}  // namespace nupa::fuzz
