package kubeletconfig

import (
	"fmt"

	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

func validateLogging(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	if f := c.Logging.Format; f != "text" && f != "json" {
		p.add("logging.format", f, "want text or json")
	}
}

// loggingWarnings returns a warning for each field about the log that has no effect here.
func loggingWarnings(asked *kubeletconfigv1beta1.KubeletConfiguration) []string {
	var warnings []string
	l := asked.Logging
	if len(l.VModule) > 0 {
		warnings = append(warnings, fmt.Sprintf("logging.vmodule: %d patterns: not honoured: logging.verbosity applies "+
			"everywhere", len(l.VModule)))
	}
	if l.FlushFrequency.Duration.Duration != 0 && l.FlushFrequency.Duration.Duration != logsapi.LogFlushFreqDefault {
		warnings = append(warnings, fmt.Sprintf("logging.flushFrequency: %v: not honoured: logs are not buffered",
			l.FlushFrequency.Duration.Duration))
	}
	if l.Options.Text.SplitStream || l.Options.JSON.SplitStream {
		warnings = append(warnings, "logging.options: splitStream: not honoured: logs go to standard error")
	}
	return warnings
}
