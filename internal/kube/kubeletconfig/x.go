package kubeletconfig

import _ "k8s.io/kubelet/config/v1beta1"
