#include <cstdio>
#include <stdexcept>

#include <fmt/format.h>

#include "engine/text/chat_template.h"
#include "engine/version.h"
#include "launcher/build_identity.h"
#include "launcher/subcommands.h"

namespace lockstep::launcher {

void set_job_options(const RunConfig& config, engine::JobOptions& options) {
  options.input_file = config.input_file;
  options.output_file = config.output_file;
  options.resume = config.resume;
  options.overwrite = config.overwrite;
  options.settings = {{"dtype", config.dtype}, {"activation-dtype", config.activation_dtype}, {"reduction", config.reduction}};
  options.numerics_version = engine::kNumericsVersion;
}

void set_model_settings(const Job& job, engine::JobOptions& options) {
  options.model_hash = job.session.model().model_hash;
  options.settings["device"] = job.numerics;
  options.settings["kv-cache-dtype"] = job.session.kv_type();
  options.settings["max-model-len"] = std::to_string(job.session.engine().limits().max_model_len);
}

engine::BatchOptions batch_options(const RunConfig& config) {
  engine::BatchOptions options;
  set_job_options(config, options);
  if (!config.error_file.empty()) options.error_file = config.error_file;
  options.output_order = config.output_order == "completion" ? engine::OutputOrder::kCompletion : engine::OutputOrder::kInput;
  options.retry_errors = config.retry_errors;
  options.seed = config.seed;
  if (!config.served_model_name.empty()) options.served_model_name = config.served_model_name;
  options.max_in_flight = 2 * static_cast<std::size_t>(config.max_num_seqs);
  return options;
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw std::runtime_error("standard output can not be written");
  }
}

int run_batch_job(const Job& job) {
  const engine::OpenedModel& opened = job.session.model();
  engine::BatchOptions options = batch_options(job.config);
  set_model_settings(job, options);

  engine::BatchModel model{.engine = job.session.engine(),
                           .tokenizer = job.session.tokenizer(),
                           .render_chat = {},
                           .defaults = opened.defaults,
                           .name = std::filesystem::path(job.config.model).stem().string(),
                           .system_fingerprint = system_fingerprint(job.numerics)};
  std::optional<text::ChatTemplate> chat_template;
  if (!opened.chat_template.empty()) {
    try {
      chat_template.emplace(opened.chat_template);
      model.render_chat = [&](const nlohmann::ordered_json& variables, std::int64_t now) { return chat_template->render(variables, now); };
    } catch (const text::TemplateError& error) {
      job.log.warn("the model's chat template can not be used, so chat requests are refused: {}", error.what());
    }
  }
  const engine::BatchHooks hooks{.progress =
                                     [&](const engine::BatchProgress& progress) {
                                       job.control.set_progress({.done = progress.done,
                                                                 .total = progress.total.value_or(0),
                                                                 .prompt_tokens = progress.prompt_tokens,
                                                                 .generated_tokens = progress.generated_tokens});
                                     },
                                 .stop = &job.control.stop_requested()};
  const engine::BatchResult result = engine::run_batch(options, model, hooks);
  if (result.interrupted) {
    job.log.info("stopped: {} lines are done; --resume continues", result.answered + result.failed);
    return 128 + job.control.stop_signal();
  }
  job.log.info("{} answers, {} lines without one{}; seed {}", result.answered, result.failed,
               result.resumed > 0 ? fmt::format(" ({} from an earlier run)", result.resumed) : "", result.seed);
  return result.failed > 0 && !job.config.allow_errors ? 3 : 0;
}

}  // namespace lockstep::launcher
